"""Classification of tools by skills, computed offline.

Nouns: *TaxonomySkill* (a name and a description), *taxonomy* (the skills that come with the
program), *Embedder* (texts to vectors), *Subject* (a tool to be classified), *SkillVerdict* (one to
three skills, each with a confidence), *Model* (embeds, classifies, averages), *ModelWorker* (a
Model in a process of its own, so that its weights are not in the service). It knows no store and
no server: ``registry/background_classifier.py`` feeds it and stores the verdicts.
"""
