"""A trained model as a folder in Hugging Face's layout, and in the hub."""

import copy
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from beem_plugin.archival import Archive, load_archive, save_archive
from beem_plugin.common.archive_files import ARCHIVE_NAME, BEST_WEIGHTS, CONFIG_NAME
from beem_plugin.common.errors import ConfigurationError, DataError, first_line
from beem_plugin.common.files import scratch_folder
from beem_plugin.common.outputs import check_place
from beem_plugin.comparison.calibrate import calibration_evidence, headline
from beem_plugin.data.hub import hub_reachable
from beem_plugin.execution.precision import INT8, dtype_of
from beem_plugin.rendering.pages.model_card import model_card
from beem_plugin.tasks.classification import text_model


def save_pretrained(archive: Archive, folder: Path) -> None:
    """Writes the archive's files and a model card, `README.md`, to a folder."""
    model = text_model(archive.model)
    if dtype_of(model.encoder) == INT8:
        raise ConfigurationError("save_pretrained: found int8 weights, allowed: a pipeline of another dtype")
    check_place(folder / CONFIG_NAME, "save_pretrained")
    if any((folder / name).exists() for name in (ARCHIVE_NAME, BEST_WEIGHTS)):
        raise ConfigurationError(f"save_pretrained: {folder} holds a training run, allowed: another folder")
    save_archive(archive, folder)
    evidence, summary = None, ""
    trace = archive.calibration.trace if archive.calibration is not None else None
    if trace is not None:
        rule = copy.deepcopy(model.exit_policy)
        report = rule.calibrate(trace)
        evidence, summary = calibration_evidence(rule, report, trace), headline(report)
    config = archive.config.as_dict(quiet=True)
    card = model_card(config, model, archive.validation_dataset_reader, evidence, summary)
    (folder / "README.md").write_text(card, encoding="utf-8")


def push_to_hub(
    archive: Archive | str | Path,
    repo_id: str,
    private: bool | None = None,
    token: str | None = None,
    folder: str | None = None,
    **options: Any,
) -> str:
    """
    Uploads what `save_pretrained` writes to Hugging Face's hub; returns the address of the commit.

    # Parameters

    archive : `Archive | str | Path`
    repo_id : `str`
        `owner/name`; the repository is made if there is none.
    private : `bool`, optional
        Of a new repository.
    token : `str`, optional (default = the one that `hf auth login` stored)
    folder : `str`, optional
        Keeps the files there.
    options : `Any`
        `commit_message`, `revision`, `create_pr` and others of `huggingface_hub.HfApi.upload_folder`.
    """
    if not hub_reachable():
        raise DataError(f"{repo_id}: not uploaded: the hub cannot be reached")
    from huggingface_hub import HfApi

    with ExitStack() as held:
        place = Path(folder) if folder else held.enter_context(scratch_folder())
        save_pretrained(archive if isinstance(archive, Archive) else load_archive(archive), place)
        api = HfApi(token=token)
        try:
            name = api.create_repo(repo_id, private=private, exist_ok=True).repo_id
            return str(api.upload_folder(repo_id=name, folder_path=place, **options).commit_url)
        except Exception as error:  # of the connection, the token, the name
            first = first_line(error)
            raise DataError(f"{repo_id}: not uploaded: {first}") from None
