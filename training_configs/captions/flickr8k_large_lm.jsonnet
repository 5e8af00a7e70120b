// The larger decoder as a language model of captions, without images: where flickr8k_large_beem starts.
local captions = import 'beem/captions.libsonnet';
captions.flickr8k_large_lm
