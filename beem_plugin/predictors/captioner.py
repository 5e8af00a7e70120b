"""Captions of images, each word leaving the decoder at its own depth."""

import base64
import io
import logging
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from beem_plugin.common.errors import ConfigurationError, DataError, check_at_least
from beem_plugin.common.outputs import IMAGE_SUFFIXES
from beem_plugin.data import DatasetReader, Instance
from beem_plugin.data.images import BadImageError, image_files, image_problem
from beem_plugin.decoding.generated import GeneratedCaption, caption_record
from beem_plugin.models import Model
from beem_plugin.predictors.predictor import JsonDict, Predictor
from beem_plugin.rendering.pages import render_page
from beem_plugin.tasks.captioning import caption_tokenizer_of

logger = logging.getLogger(__name__)

HINT = '; dataset_reader.on_bad_image "skip" leaves it out'


@Predictor.register("captioner")
class CaptionerPredictor(Predictor):
    """
    Takes an image, a folder of images, a list of paths, or JSON lines with `image`, a path. Each prediction holds the
    input's fields and

    - `caption`,
    - `words`: each with its `exit` (from 1; of a word of several tokens the deepest), `layer` and `log_probability`,
    - `tokens`, `exits`: ids of the tokenizer and the exit of each, the end token included,
    - `score`: the log-probability of the caption.

    An image that cannot be decoded is an error, or, with the reader's `on_bad_image: "skip"`, a prediction whose
    `caption` is null with the reason in `error`.

    Registered as a `Predictor` with name "captioner".

    # Parameters

    model : `Model`
        One that generates captions.
    dataset_reader : `DatasetReader`
        A reader of captions with images.
    batch_size : `int`, optional (default = `32`)
    max_length : `int`, optional (default = the model's)
        Tokens a caption.
    num_beams : `int`, optional (default = the model's)
        1 is greedy decoding.
    """

    def __init__(
        self,
        model: Model,
        dataset_reader: DatasetReader,
        batch_size: int = 32,
        max_length: int | None = None,
        num_beams: int | None = None,
    ) -> None:
        super().__init__(model, dataset_reader)
        if not hasattr(model, "generate"):
            raise ConfigurationError(
                f"predictor captioner: found a model {type(model).__name__}, allowed: multi_exit_captioner"
            )
        tokenizer = caption_tokenizer_of(dataset_reader)
        if getattr(dataset_reader, "image_processor", None) is None:
            raise ConfigurationError("predictor captioner: allowed: a dataset reader of images with captions")
        check_at_least(1, **{"batch size": batch_size})
        self.captioner: Any = model
        self.reader: Any = dataset_reader
        self.tokenizer = tokenizer
        self.batch_size = batch_size
        self.max_length = max_length
        self.num_beams = num_beams
        self._collator = dataset_reader.collator(model.vocab, tokenizer.pad_token_id)

    def input_records(self, source: str) -> list[JsonDict] | None:
        """An image file, or the images in a folder; anything else is a text file with records."""
        path = Path(source)
        if path.is_dir():
            found = image_files(path)
            if not found:
                raise DataError(f"{source}: no images in this folder; allowed: {', '.join(IMAGE_SUFFIXES)}")
        elif path.suffix.lower() in IMAGE_SUFFIXES:
            found = [path]
        else:
            return None
        return [{"image": str(image)} for image in found]

    def _batch_json_to_instances(self, json_dicts: Sequence[JsonDict]) -> list[Instance]:
        instances = self.dataset_reader.texts_to_instances(json_dicts)
        for instance in instances:
            # The header alone: what else is wrong shows when the batch is made.
            problem = None if "image" not in instance.fields else image_problem(instance.fields["image"])
            if problem is not None and self.reader.on_bad_image == "error":
                raise DataError(f"{problem}{HINT}")
        return instances

    def predict_batch_instance(self, instances: Sequence[Instance]) -> list[JsonDict]:
        return [prediction for part in self.predict_parts(instances) for prediction in part]

    def predict_parts(self, instances: Sequence[Instance]) -> Iterator[list[JsonDict]]:
        for start in range(0, len(instances), self.batch_size):
            part = instances[start : start + self.batch_size]
            try:
                predictions = self._predict_part(part)
            except BadImageError as error:
                # Damage shows when an image is decoded: those before it in its batch are captioned all the same.
                yield self._predict_part(part[: self._first_bad(part)])
                raise DataError(f"{error}{HINT}") from None
            yield predictions

    def _predict_part(self, instances: Sequence[Instance]) -> list[JsonDict]:
        problems = [self._problem(instance) for instance in instances]
        good = [instance for instance, problem in zip(instances, problems) if problem is None]
        captions = iter(self._captions(good))
        results: list[JsonDict] = []
        for instance, problem in zip(instances, problems):
            fields = input_fields(instance)
            if problem is None:
                said = caption_record(next(captions), self.tokenizer, self.captioner.exit_layers)
                results.append({**fields, **said})
            else:
                logger.warning("left out: %s", problem)
                results.append({**fields, "caption": None, "error": problem})
        return results

    def page(self, predictions: Sequence[JsonDict]) -> str:
        shown = [one for one in predictions if one["caption"] is not None]
        layers = [word["layer"] for prediction in shown for word in prediction["words"]]
        return render_page(
            "captions.html",
            images=[(one, *embedded(self.reader.open_image(one))) for one in shown],
            exit_layers=self.captioner.exit_layers,
            mean_layer=sum(layers) / len(layers) if layers else None,
            exp=math.exp,
        )

    def _problem(self, instance: Instance) -> str | None:
        if self.reader.on_bad_image == "error" or "image" not in instance.fields:
            return None
        return image_problem(instance.fields["image"], decode=True)

    def _first_bad(self, instances: Sequence[Instance]) -> int:
        """The row of the first image that cannot be opened."""
        for row, instance in enumerate(instances):
            try:
                self.reader.open_image(instance.fields)
            except BadImageError:
                return row
        return 0  # it can now: someone replaced the file

    def _captions(self, instances: Sequence[Instance]) -> list[GeneratedCaption]:
        if not instances:
            return []
        batch = self._collator(instances, range(len(instances)))
        device = next(self.captioner.parameters()).device
        with torch.inference_mode():
            return self.captioner.generate(
                {name: value.to(device) for name, value in batch.items()},
                max_length=self.max_length,
                num_beams=self.num_beams,
            )


def input_fields(instance: Instance) -> JsonDict:
    """What the input said; its own caption, if it has one, moved out of the prediction's way."""
    fields = dict(instance.fields)
    if "caption" in fields:
        fields["gold_caption"] = fields.pop("caption")
    for name in ("words", "tokens", "exits", "score", "error"):
        if name in fields:
            fields[f"input_{name}"] = fields.pop(name)
    return fields


LARGEST_SIDE = 480
SMALL_SIDE = 128
"""Up to this size images are stored without loss and enlarged pixel by pixel."""


def embedded(image: Image.Image) -> tuple[str, bool]:
    """The image as the source of an `img`, and whether it is small."""
    is_small, buffer = max(image.size) <= SMALL_SIDE, io.BytesIO()
    kind, image = "PNG" if is_small else "JPEG", image.convert("RGB")
    image.thumbnail((LARGEST_SIDE, LARGEST_SIDE))
    image.save(buffer, kind, quality=85)
    return f"data:image/{kind.lower()};base64,{base64.b64encode(buffer.getvalue()).decode()}", is_small
