// A small decoder as a language model of captions, without images: where flickr8k_beem starts.
local captions = import 'beem/captions.libsonnet';
captions.flickr8k_lm
