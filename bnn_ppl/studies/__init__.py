"""Experiments with many fits: each is one call that returns a table, one row per condition.

Continual learning on permuted images (`continual_learning`), and partly random training labels
(`label_noise_network`, and `label_noise_gp` to compare). With a folder every fit is a run in a
subfolder: the same call resumes a study that was interrupted or killed.
"""

from bnn_ppl.studies.continual import average_accuracy, continual_learning, forgetting, permuted
from bnn_ppl.studies.label_noise import label_noise_gp, label_noise_network, with_label_noise

__all__ = [
    "average_accuracy",
    "continual_learning",
    "forgetting",
    "label_noise_gp",
    "label_noise_network",
    "permuted",
    "with_label_noise",
]
