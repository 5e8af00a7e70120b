from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from beem_plugin.data.images import BadImageError, image_files, image_problem, open_image, to_rgb


def damaged(folder: Path) -> Path:
    """A JPEG with a good header whose second half is missing."""
    path = folder / "damaged.jpg"
    Image.effect_noise((64, 64), 80).convert("RGB").save(path)
    path.write_bytes(path.read_bytes()[:900])
    return path


def test_an_image_is_opened_in_rgb_and_turned_as_its_exif_data_say(tmp_path: Path) -> None:
    image = Image.new("L", (4, 8), 200)
    exif = image.getexif()
    exif[0x0112] = 6
    image.save(tmp_path / "a.png", exif=exif)
    opened = open_image(tmp_path / "a.png")
    assert (opened.mode, opened.size) == ("RGB", (8, 4))


@pytest.mark.parametrize("name", ["a.png", "a.tif"])
def test_grey_levels_of_sixteen_bits_keep_their_brightness(tmp_path: Path, name: str) -> None:
    levels = np.array([[0, 255, 257], [12850, 32896, 65535]], dtype=np.uint16)
    Image.fromarray(levels).save(tmp_path / name)
    opened = open_image(tmp_path / name)
    assert opened.mode == "RGB"
    for channel in range(3):
        assert np.asarray(opened)[:, :, channel].tolist() == [[0, 1, 1], [50, 128, 255]]


def test_integers_of_older_pillow_are_sixteen_bits_as_well() -> None:
    assert np.asarray(to_rgb(Image.fromarray(np.array([[0, 32896, 65535]], dtype=np.int32))))[0, :, 0].tolist() == [
        0,
        128,
        255,
    ]


@pytest.mark.parametrize("kind", [np.float32, np.int32])
def test_pixels_of_unknown_range_are_refused(tmp_path: Path, kind: type) -> None:
    path = tmp_path / "a.tif"
    Image.fromarray(np.ones((4, 4), dtype=kind)).save(path)
    assert "allowed: 8 or 16 bits" in (image_problem(path) or "")
    with pytest.raises(BadImageError, match=r"a.tif.*found pixels of 32 bits"):
        open_image(path)


def test_what_is_wrong_is_named_with_its_file(tmp_path: Path) -> None:
    (tmp_path / "text.png").write_text("no image")
    for name, reason in (("none.png", "no such image"), ("text.png", "not an image"), ("", "is a folder")):
        with pytest.raises(BadImageError, match=f"{tmp_path / name}.*{reason}"):
            open_image(tmp_path / name)
    path = damaged(tmp_path)
    with pytest.raises(BadImageError, match="damaged.jpg: the image cannot be decoded"):
        open_image(path)


def test_damage_inside_is_found_only_by_decoding(tmp_path: Path) -> None:
    path = damaged(tmp_path)
    assert image_problem(path) is None
    assert "damaged.jpg" in (image_problem(path, decode=True) or "")


def test_an_error_of_a_worker_keeps_its_one_line() -> None:
    wrapped = (
        f"Caught BadImageError in worker 0.\nTraceback:\n  ...\n{BadImageError.__module__}.BadImageError: a.jpg: bad\n"
    )
    assert str(BadImageError(wrapped)) == "a.jpg: bad"
    assert str(pickle.loads(pickle.dumps(BadImageError("a.jpg: bad")))) == "a.jpg: bad"


def test_image_files_are_listed_by_name_without_others(tmp_path: Path) -> None:
    for name in ("b.JPG", "a.png", "c.txt"):
        (tmp_path / name).touch()
    (tmp_path / "folder.png").mkdir()
    assert [path.name for path in image_files(tmp_path)] == ["a.png", "b.JPG"]
