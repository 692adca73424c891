"""Experiments of many fits, each one call that gives a table: a row a condition.

Continual learning on permuted images (`continual_learning`), and training labels that are partly
random (`label_noise_network` and, beside it, `label_noise_gp`). With a folder every fit is a run
of its own in it: the same call goes on where a study was stopped or killed.
"""

from bnn_ppl.studies.continual import (
    average_accuracy,
    continual_learning,
    forgetting,
    permuted,
)
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
