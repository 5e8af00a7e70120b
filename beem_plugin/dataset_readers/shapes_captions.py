"""Scenes of coloured shapes with captions that name what is where, drawn and not downloaded, and their reader."""

import hashlib
import random
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from PIL import Image, ImageDraw

from beem_plugin.common.errors import DataError, check_choice, check_number, not_allowed
from beem_plugin.data.caption_tokenizer import CaptionTokenizer, WordTokenizer
from beem_plugin.data.dataset_reader import DatasetReader
from beem_plugin.data.image_processor import ImageProcessor
from beem_plugin.data.images import open_image
from beem_plugin.data.instance import Instance
from beem_plugin.dataset_readers.captions import CaptionedImage, CaptionReader

COLOURS = {
    "red": (220, 40, 40),
    "green": (40, 180, 60),
    "blue": (50, 80, 220),
    "yellow": (240, 210, 40),
    "purple": (150, 60, 180),
    "white": (245, 245, 245),
}
SHAPES = ("circle", "square", "triangle", "cross")
SIZES = {"small": 0.11, "large": 0.2}  # half the side of a shape, as a share of the image's

# Where the first shape is, seen from the second: the second's place, in shares of the image's sides.
RELATIONS = {
    "to the left of": ((0.25, 0.5), (0.75, 0.5)),
    "to the right of": ((0.75, 0.5), (0.25, 0.5)),
    "above": ((0.5, 0.25), (0.5, 0.75)),
    "below": ((0.5, 0.75), (0.5, 0.25)),
}
OPPOSITE = {"to the left of": "to the right of", "to the right of": "to the left of", "above": "below"}
OPPOSITE["below"] = "above"
BACKGROUND = (30, 30, 34)
JITTER = 0.05

Scene = dict[str, Any]
"""`{"shapes": [{"size", "colour", "shape", "x", "y"}, ...], "relation": name or None}`, JSON-able."""


def draw_scene(rng: random.Random) -> Scene:
    """A scene of one shape or two, the larger, left or upper one first: the image alone determines the caption."""
    if rng.random() < 0.2:
        return {"shapes": [_shape(rng, (0.5, 0.5), 0.2)], "relation": None}
    relation = rng.choice(("to the left of", "above"))
    first, second = (_shape(rng, place, JITTER) for place in RELATIONS[relation])
    if SIZES[second["size"]] > SIZES[first["size"]]:
        return {"shapes": [second, first], "relation": OPPOSITE[relation]}
    return {"shapes": [first, second], "relation": relation}


def scene_captions(scene: Scene, count: int) -> list[str]:
    """The first `count` of the ways to say what is in a scene; the first one is always the same form."""
    names = [_name(shape) for shape in scene["shapes"]]
    if scene["relation"] is None:
        said = [f"a {names[0]}", f"there is a {names[0]}", f"a picture of a {names[0]}", f"one {names[0]}"]
    else:
        relation = scene["relation"]
        said = [
            f"a {names[0]} {relation} a {names[1]}",
            f"a {names[1]} {OPPOSITE[relation]} a {names[0]}",
            f"there is a {names[0]} {relation} a {names[1]}",
            f"a {names[0]} and a {names[1]}",
        ]
    return said[:count]


def scene_split(scene: Scene, seed: int) -> str:
    """`"train"`, `"val"` or `"test"` (8 : 1 : 1) by the description, so that each occurs in one split only."""
    names = sorted(_name(shape) for shape in scene["shapes"])
    # The two ways round are one description: "a above b" is "b below a".
    relation = str(scene["relation"]) if scene["shapes"] and names[0] == _name(scene["shapes"][0]) else ""
    relation = relation or str(OPPOSITE.get(scene["relation"], scene["relation"]))
    share = int(hashlib.sha256(f"{seed} {names} {relation}".encode()).hexdigest()[:8], 16) % 10
    return "val" if share == 8 else "test" if share == 9 else "train"


def render_scene(scene: Mapping[str, Any], size: int) -> Image.Image:
    """The scene as an RGB image of `size` by `size` pixels."""
    scale = 4  # drawn larger and shrunk: shapes of a few pixels need smooth edges to be told apart
    image = Image.new("RGB", (size * scale, size * scale), BACKGROUND)
    canvas = ImageDraw.Draw(image)
    for shape in check_scene(scene):
        half = SIZES[shape["size"]] * size * scale
        x, y = shape["x"] * size * scale, shape["y"] * size * scale
        colour = COLOURS[shape["colour"]]
        if shape["shape"] == "circle":
            canvas.ellipse((x - half, y - half, x + half, y + half), fill=colour)
        elif shape["shape"] == "square":
            canvas.rectangle((x - half, y - half, x + half, y + half), fill=colour)
        elif shape["shape"] == "triangle":
            canvas.polygon([(x, y - half), (x - half, y + half), (x + half, y + half)], fill=colour)
        else:
            arm = half / 3
            canvas.rectangle((x - half, y - arm, x + half, y + arm), fill=colour)
            canvas.rectangle((x - arm, y - half, x + arm, y + half), fill=colour)
    return image.resize((size, size), Image.Resampling.BOX)


def _shape(rng: random.Random, place: tuple[float, float], jitter: float) -> dict[str, Any]:
    return {
        "size": rng.choice(list(SIZES)),
        "colour": rng.choice(list(COLOURS)),
        "shape": rng.choice(SHAPES),
        "x": round(place[0] + rng.uniform(-jitter, jitter), 4),
        "y": round(place[1] + rng.uniform(-jitter, jitter), 4),
    }


def _name(shape: Mapping[str, Any]) -> str:
    return f"{shape['size']} {shape['colour']} {shape['shape']}"


def check_scene(scene: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """The shapes of a scene, which may come from a user's file; raises a `DataError` if it cannot be drawn."""
    allowed: dict[str, Collection[str]] = {"size": SIZES, "colour": COLOURS, "shape": SHAPES}
    try:
        shapes = scene["shapes"]
        for shape in shapes:
            for key, values in allowed.items():
                if shape[key] not in values:
                    raise DataError(not_allowed(f"scene: {key}", shape[key], values))
            for key in ("x", "y"):
                # A shape may stick out of the image, or lie outside; far away Pillow's whole numbers end.
                if not isinstance(shape[key], int | float) or not abs(shape[key]) <= 100:
                    raise DataError(f"scene: {key}: found {shape[key]!r}, allowed: a share of the image's side")
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"scene: lacks or garbles {error}; allowed: shapes with size, colour, shape, x, y") from None
    return shapes


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
    on_bad_image, keep_images, max_instances, slicing, holdout_fraction, holdout_max_size, holdout_seed
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
        check_number("dataset_reader.image_size", image_size, 16)
        check_number("dataset_reader.captions_per_image", captions_per_image, 1, 4)
        self.image_size = image_size
        self.sizes = dict(zip(SPLITS, (num_train, num_val, num_test)))
        self.captions_per_image = captions_per_image
        self.seed = seed

    def open_image(self, fields: Mapping[str, Any]) -> Image.Image:
        return render_scene(fields["scene"], self.image_size) if "scene" in fields else open_image(fields["image"])

    def _read_images(self, source: str) -> Iterable[CaptionedImage]:
        split = "val" if source == "validation" else source
        check_choice("shapes_captions: the split", split, SPLITS)
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
