"""The bus: what happens in Junction, as numbered events that a reader can take up again."""
