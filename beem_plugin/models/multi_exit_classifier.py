"""Text classification with an exit at every layer."""

from beem_plugin.common.errors import ConfigurationError
from beem_plugin.data.vocabulary import Vocabulary
from beem_plugin.models.model import Model
from beem_plugin.models.multi_exit_model import MultiExitModel


@Model.register("multi_exit_classifier")
class MultiExitClassifier(MultiExitModel):
    """
    A multi-exit encoder with its training objective and exit policy.

    Training and validation run all exits. `evaluate` and `predict` run the policy on an engine, which skips the layers
    after the exit of a sample.

    Registered as a `Model` with name "multi_exit_classifier".

    # Parameters

    vocab : `Vocabulary`
        Filled in.
    encoder : `MultiExitEncoder`
    objective : `Objective`, optional (default = `"weighted_distillation"`)
        The objective of the BEEM paper.
    exit_policy : `ExitPolicy`, optional (default = `"final"`)
        Thresholds and weights that are not given are fitted by calibration.
    engine : `Engine`, optional (default = `"compaction"`)
        Runs the policy.
    metric : `str`, optional (default = the dataset reader's)
        A name of `beem_plugin.common.metrics`.
    is_regression : `bool`, optional (default = the dataset reader's)
        Filled in, to reject regression tasks.
    """

    @classmethod
    def check_labels(cls, vocab: Vocabulary, is_regression: bool | None) -> None:
        if is_regression:
            raise ConfigurationError(
                "multi_exit_classifier: found a regression task (STS-B), allowed: classification; `type: "
                '"multi_exit_regressor"` is for regressions'
            )
        if vocab.num_labels < 2:
            raise ConfigurationError(
                f"multi_exit_classifier: found {vocab.num_labels} label in the training data "
                f"({', '.join(vocab.labels)}), allowed: 2 or more"
            )
