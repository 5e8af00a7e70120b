"""Images with captions in the form of Karpathy's splits: COCO, Flickr8k, Flickr30k."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from beem_plugin.common.errors import ConfigurationError, DataError, check_choice
from beem_plugin.common.strict_json import parse_json
from beem_plugin.common.text_input import open_text
from beem_plugin.data.caption_tokenizer import CaptionTokenizer
from beem_plugin.data.dataset_reader import DatasetReader
from beem_plugin.data.image_processor import ImageProcessor
from beem_plugin.dataset_readers.captions import CAPTION_FORMS, CaptionedImage, CaptionReader, target_text

# Source -> splits in the file. `restval` are the images of COCO's validation set outside Karpathy's validation and test
# sets; published models train on them.
SPLITS = {
    "train": ("train", "restval"),
    "restval": ("restval",),
    "val": ("val",),
    "validation": ("val",),
    "test": ("test",),
}


@DatasetReader.register("karpathy_captions")
class KarpathyCaptionsReader(CaptionReader):
    """
    Reads `dataset_coco.json`, `dataset_flickr8k.json` and files like these:
    `{"images": [{"filename", "imgid", "split", "sentences": [{"raw", "tokens"}], "filepath"?, "cocoid"?}]}`.

    Sources are `train` (with `restval`), `val`, `test`, `restval`. Training data are one instance a caption, other data
    one an image; see `CaptionReader`.

    Registered as a `DatasetReader` with name "karpathy_captions".

    # Parameters

    file : `str`
        The JSON file, gzipped or not.
    tokenizer : `CaptionTokenizer`
    image_processor : `ImageProcessor`
    image_dir : `str`, optional (default = the folder `images` beside the file)
        An image is `image_dir/filepath/filename`, or `image_dir/filename`.
    caption_form : `str`, optional (default = `"tokens"`)
        What the decoder learns: `"tokens"`, lower case without punctuation, or `"raw"`. Scores are always against the
        raw captions, tokenized by the scorer.
    on_bad_image, keep_images, max_instances, slicing, holdout_fraction, holdout_max_size, holdout_seed
        See `CaptionReader`.
    """

    def __init__(
        self,
        file: str,
        tokenizer: CaptionTokenizer,
        image_processor: ImageProcessor,
        image_dir: str | None = None,
        caption_form: str = "tokens",
        **options: Any,
    ) -> None:
        super().__init__(tokenizer, image_processor, **options)
        self.file = Path(file).expanduser()
        self.image_dir = Path(image_dir).expanduser() if image_dir is not None else self.file.parent / "images"
        check_choice("dataset_reader.caption_form", caption_form, CAPTION_FORMS)
        self.caption_form = caption_form
        self._entries: list[dict[str, Any]] | None = None

    def _read_images(self, source: str) -> Iterable[CaptionedImage]:
        check_choice(f"{self.file}: the split", source, SPLITS)
        if self._entries is None:
            self._entries = karpathy_entries(self.file)
        if not self.image_dir.is_dir():
            raise ConfigurationError(
                f"dataset_reader.image_dir: {self.image_dir} is no folder; allowed: the folder with the images"
            )
        chosen = [(number, entry) for number, entry in enumerate(self._entries) if entry["split"] in SPLITS[source]]
        if not chosen:
            found = sorted({entry["split"] for entry in self._entries})
            raise DataError(f"{self.file}: no image of split {source!r}; found: {', '.join(found)}")
        seen: dict[Any, str] = {}
        for number, entry in chosen:
            image = self._image(entry, f"{self.file}: image {number}")
            identity, path = image.fields["image_id"], image.fields["image"]
            # Captions are judged by these numbers.
            if seen.setdefault(identity, path) != path and not self.is_training_source(source):
                raise DataError(
                    f"{self.file}: image {number}: {_identity_key(entry)}: found {identity!r} of two images, "
                    f"{seen[identity]} and {path}; allowed: a number of its own for each image"
                )
            yield image

    def _image(self, entry: dict[str, Any], place: str) -> CaptionedImage:
        _check_fields(entry, place)
        try:
            references = [" ".join(sentence["raw"].split()) for sentence in entry["sentences"]]
            targets = [
                target_text(sentence["raw"], sentence.get("tokens"), self.caption_form)
                for sentence in entry["sentences"]
            ]
            # COCO's own numbers where there are such: its results files are written in these.
            identity = entry[_identity_key(entry)]
            path = self.image_dir / entry["filename"]
            if entry.get("filepath") is not None:
                nested = self.image_dir / entry["filepath"] / entry["filename"]
                path = nested if nested.is_file() else path
        except (KeyError, TypeError, AttributeError) as error:
            raise DataError(f"{place}: not of the form of a Karpathy split: lacks or garbles {error}") from None
        return CaptionedImage({"image": str(path), "image_id": identity}, references, [t for t in targets if t])


def karpathy_entries(file: Path) -> list[dict[str, Any]]:
    """The list `images` of a Karpathy split."""
    with open_text(file) as stream:
        content = parse_json(stream.read(), str(file))
    entries = content.get("images") if isinstance(content, dict) else None
    if not isinstance(entries, list) or not entries:
        raise DataError(f"{file}: lacks the list 'images' of a Karpathy split")
    for number, entry in enumerate(entries):
        if not isinstance(entry, dict) or "split" not in entry:
            raise DataError(f"{file}: image {number}: lacks 'split'")
        if not isinstance(entry["split"], str):
            raise DataError(_garbled(f"{file}: image {number}", entry, "split", entry["split"], "a string"))
    return entries


def _identity_key(entry: Mapping[str, Any]) -> str:
    return "cocoid" if "cocoid" in entry else "imgid"


def _check_fields(entry: Mapping[str, Any], place: str) -> None:
    """Raises a `DataError` for what would pass for something else: a string is a list of its letters."""
    key = _identity_key(entry)
    identity = entry.get(key, 0)
    if isinstance(identity, bool) or not isinstance(identity, int | str):
        raise DataError(_garbled(place, entry, key, identity, "a whole number or a string"))
    sentences = entry.get("sentences", [])
    if not isinstance(sentences, list):
        raise DataError(_garbled(place, entry, "sentences", sentences, "a list of objects"))
    for sentence in sentences:
        tokens = sentence.get("tokens") if isinstance(sentence, dict) else None
        if tokens is not None and (not isinstance(tokens, list) or not all(isinstance(word, str) for word in tokens)):
            raise DataError(_garbled(place, entry, "tokens", tokens, "a list of words"))


def _garbled(place: str, entry: Mapping[str, Any], key: str, found: object, allowed: str) -> str:
    name = f" ({entry['filename']})" if isinstance(entry.get("filename"), str) else ""
    return f"{place}{name}: {key}: found {found!r}, allowed: {allowed}"
