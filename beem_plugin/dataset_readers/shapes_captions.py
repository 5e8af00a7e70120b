"""The reader of generated scenes of shapes."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from PIL import Image

from beem_plugin.common.errors import ConfigurationError, DataError, not_allowed
from beem_plugin.data.caption_tokenizer import CaptionTokenizer
from beem_plugin.data.dataset_reader import DatasetReader
from beem_plugin.data.image_processor import ImageProcessor
from beem_plugin.data.images import open_image
from beem_plugin.data.instance import Instance
from beem_plugin.data.trained_caption_tokenizer import WordTokenizer
from beem_plugin.dataset_readers.captions import CaptionedImage, CaptionReader
from beem_plugin.dataset_readers.shapes import check_scene, draw_scene, render_scene, scene_captions, scene_split

SPLITS = ("train", "val", "test")


@DatasetReader.register("shapes_captions")
class ShapesCaptionsReader(CaptionReader):
    """
    Scenes of one or two coloured shapes, "a small red circle to the left of a large blue square", made in memory and
    the same for the same seed on every machine. A description occurs in one split only.

    Sources are `train`, `val` (or `validation`) and `test`. Training data are one instance a caption, other data one
    an image; see `CaptionReader`. `predict` takes image files, or JSON lines with a `scene` as these instances have it.

    Registered as a `DatasetReader` with name "shapes_captions".

    # Parameters

    tokenizer : `CaptionTokenizer`, optional (default = `"words"`)
    image_size : `int`, optional (default = `32`)
        Pixels a side.
    image_processor : `ImageProcessor`, optional (default = `{"size": image_size}`)
    num_train, num_val, num_test : `int`, optional (default = `4000`, `200`, `200`)
        Images in each split.
    captions_per_image : `int`, optional (default = `1`)
        1 to 4 ways to say the same. With one, every word is certain from the image, and a model can be right always.
    seed : `int`, optional (default = `0`)
    on_bad_image, max_instances, holdout_fraction, holdout_seed
        See `CaptionReader`; `on_bad_image` is about image files given to `predict`.
    """

    def __init__(
        self,
        tokenizer: CaptionTokenizer | None = None,
        image_size: int = 32,
        image_processor: ImageProcessor | None = None,
        num_train: int = 4000,
        num_val: int = 200,
        num_test: int = 200,
        captions_per_image: int = 1,
        seed: int = 0,
        **options: Any,
    ) -> None:
        super().__init__(tokenizer or WordTokenizer(), image_processor or ImageProcessor(size=image_size), **options)
        if image_size < 16:
            raise ConfigurationError(f"dataset_reader.image_size: found {image_size}, allowed: at least 16")
        if not 1 <= captions_per_image <= 4:
            raise ConfigurationError(f"dataset_reader.captions_per_image: found {captions_per_image}, allowed: 1 to 4")
        self.image_size = image_size
        self.sizes = dict(zip(SPLITS, (num_train, num_val, num_test)))
        self.captions_per_image = captions_per_image
        self.seed = seed

    def open_image(self, fields: Mapping[str, Any]) -> Image.Image:
        return render_scene(fields["scene"], self.image_size) if "scene" in fields else open_image(fields["image"])

    def _read_images(self, source: str) -> Iterable[CaptionedImage]:
        split = "val" if source == "validation" else source
        if split not in SPLITS:
            raise ConfigurationError(not_allowed("shapes_captions: the split", source, SPLITS))
        rng = random.Random(f"{self.seed} {split}")
        made = 0
        while made < self.sizes[split]:
            scene = draw_scene(rng)
            if scene_split(scene, self.seed) != split:
                continue
            captions = scene_captions(scene, self.captions_per_image)
            yield CaptionedImage({"image_id": f"{split}_{made}", "scene": scene}, captions, captions)
            made += 1

    def _problem(self, fields: Mapping[str, Any], decode: bool) -> str | None:
        return None

    def _instance(self, fields: dict[str, Any]) -> Instance:
        if "scene" not in fields:
            return super()._instance(fields)
        if not isinstance(fields["scene"], dict):
            raise DataError(f"scene: found {fields['scene']!r}, allowed: an object with shapes")
        # Not first when it is drawn: here the line that it came from is known.
        check_scene(fields["scene"])
        return Instance(fields=fields, id=fields.get("image_id", fields.get("id")))


def write_scenes(reader: ShapesCaptionsReader, source: str, folder: str | Path) -> list[Path]:
    """The images of a source as PNG files, for looking at them and for `predict`."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for image in reader._read_images(source):
        path = folder / f"{image.fields['image_id']}.png"
        reader.open_image(image.fields).save(path)
        paths.append(path)
    return paths
