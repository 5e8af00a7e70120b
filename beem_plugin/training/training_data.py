"""Where a trainer's data come from, for callbacks that need more of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from beem_plugin.data.dataset_reader import DatasetReader
from beem_plugin.data.instance import Instance


@dataclass
class TrainingData:
    """
    # Parameters

    dataset_reader : `DatasetReader`
        Reads the training data.
    train_data_path : `str`
    train_instances : `Sequence[Instance]`
    validation_data_path : `str`, optional (default = `None`)
    validation_instances : `Sequence[Instance]`, optional (default = `[]`)
    test_data_path : `str`, optional (default = `None`)
    test_instances : `Sequence[Instance]`, optional (default = `[]`)
        Empty unless the config evaluates on test data.
    pad_token_id : `int`, optional (default = `0`)
    policy_config : `dict`, optional (default = `{}`)
        The block `model.exit_policy` as the config has it.
    """

    dataset_reader: DatasetReader
    train_data_path: str
    train_instances: Sequence[Instance]
    validation_data_path: str | None = None
    validation_instances: Sequence[Instance] = field(default_factory=list)
    test_data_path: str | None = None
    test_instances: Sequence[Instance] = field(default_factory=list)
    pad_token_id: int = 0
    policy_config: dict[str, Any] = field(default_factory=dict)
