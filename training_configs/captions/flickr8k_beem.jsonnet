// BEEM-A on Flickr8k: a frozen DINOv2, and the decoder that flickr8k_lm leaves.
local captions = import 'beem/captions.libsonnet';
captions.flickr8k + captions.beem_a
