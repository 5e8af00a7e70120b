// BEEM-A on Flickr8k for a GPU: a frozen DINOv2 at 224 pixels, and the decoder that flickr8k_large_lm leaves.
local captions = import 'beem/captions.libsonnet';
captions.flickr8k_large + captions.beem_a
