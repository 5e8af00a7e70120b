from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from beem_plugin.common.errors import BeemError
from beem_plugin.common.registry import Params
from beem_plugin.data import DatasetReader
from beem_plugin.dataset_readers.shapes_captions import COLOURS, draw_scene, render_scene, scene_captions


def reader(**extra: Any) -> Any:
    sizes = {"num_train": 40, "num_val": 10, "num_test": 10}
    return DatasetReader.from_params(Params({"type": "shapes_captions", **sizes, **extra}))


def test_the_same_seed_makes_the_same_data_and_another_seed_others() -> None:
    one, same, other = reader().read("train"), reader().read("train"), reader(seed=1).read("train")
    assert [i.fields for i in one] == [i.fields for i in same] != [i.fields for i in other]
    assert len(one) == 40
    json.dumps(one[0].fields)


def test_no_description_occurs_in_two_splits() -> None:
    one = reader(num_train=300, num_val=60, num_test=60)
    said = [{i.fields["caption"] for i in one.read(f"{name}[captions]")} for name in ("train", "val", "test")]
    assert not said[0] & said[1] and not said[0] & said[2] and not said[1] & said[2]


def test_the_caption_says_what_is_drawn_where() -> None:
    scene = {
        "shapes": [
            {"size": "large", "colour": "red", "shape": "square", "x": 0.75, "y": 0.5},
            {"size": "small", "colour": "blue", "shape": "circle", "x": 0.25, "y": 0.5},
        ],
        "relation": "to the right of",
    }
    assert scene_captions(scene, 4) == [
        "a large red square to the right of a small blue circle",
        "a small blue circle to the left of a large red square",
        "there is a large red square to the right of a small blue circle",
        "a large red square and a small blue circle",
    ]
    image = render_scene(scene, 32)
    assert image.size == (32, 32)
    assert (image.getpixel((24, 16)), image.getpixel((8, 16))) == (COLOURS["red"], COLOURS["blue"])


def test_the_image_decides_which_shape_is_named_first() -> None:
    rng = random.Random(0)
    for _ in range(200):
        scene = draw_scene(rng)
        if scene["relation"] is None:
            continue
        first, second = scene["shapes"]
        if first["size"] == second["size"]:
            assert scene["relation"] in ("to the left of", "above")
        else:
            assert first["size"] == "large"
        axis, sign = {"to the left of": ("x", 1), "to the right of": ("x", -1), "above": ("y", 1), "below": ("y", -1)}[
            scene["relation"]
        ]
        assert sign * (second[axis] - first[axis]) > 0.2


def test_several_captions_an_image_are_references() -> None:
    one = reader(captions_per_image=3)
    assert len(one.read("train")) == 120
    assert len(one.read("val")[0].fields["references"]) == 3


def test_images_can_be_written_and_given_back_as_files(tmp_path: Path) -> None:
    one = reader()
    scene = one.read("val")[0].fields["scene"]
    one.open_image({"scene": scene}).save(tmp_path / "scene.png")
    instance = one.text_to_instance(image=str(tmp_path / "scene.png"))
    assert one.open_image(instance.fields).tobytes() == one.open_image({"scene": scene}).tobytes()


@pytest.mark.parametrize(
    ("extra", "words"),
    [({"image_size": 8}, "image_size"), ({"captions_per_image": 5}, "captions_per_image: found 5")],
)
def test_wrong_sizes_are_refused(extra: dict[str, int], words: str) -> None:
    with pytest.raises(BeemError, match=words):
        reader(**extra)


def test_a_scene_of_a_user_is_checked() -> None:
    with pytest.raises(BeemError, match="colour: found 'pink'"):
        shape = {"size": "small", "colour": "pink", "shape": "circle", "x": 0.5, "y": 0.5}
        render_scene({"shapes": [shape], "relation": None}, 32)
    with pytest.raises(BeemError, match="lacks or garbles 'shapes'"):
        render_scene({}, 32)
    with pytest.raises(BeemError, match="found 'tset', allowed: test"):
        reader().read("tset")


@pytest.mark.parametrize("place", ["0.5", float("nan"), float("inf"), 1e300, None])
def test_a_place_that_cannot_be_drawn_is_refused_when_the_input_is_read(place: Any) -> None:
    scene = {"shapes": [{"size": "small", "colour": "red", "shape": "circle", "x": place, "y": 0.5}]}
    with pytest.raises(BeemError, match="scene: x: found"):
        reader().text_to_instance(scene=scene)


def test_what_becomes_of_bad_image_files_can_be_said() -> None:
    assert reader(on_bad_image="skip").collator(None, 0).skips_bad_images
    with pytest.raises(BeemError, match="on_bad_image: found 'ignore', allowed: error, skip"):
        reader(on_bad_image="ignore")
