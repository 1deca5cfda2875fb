"""Classification of tools by skills: offline, and what an LLM is asked.

Nouns: *TaxonomySkill* (a name and a description), *taxonomy* (the skills that come with the
program), *ToolText* (the words of a tool, by field), *Subject* (a tool to be classified),
*SkillVerdict* (one to three skills, each with a confidence), *TrainedModel* (the shipped weights),
*Model* (embeds, classifies, pools, clusters, averages), *ModelWorker* (a Model in a process of its
own, so that its weights are not in the service), *LLMProvider* (how one kind of LLM is asked). It
knows no store and no server, and connects nowhere: ``registry/background_classifier.py`` and
``verdicts.py`` feed it and store the verdicts.
"""
