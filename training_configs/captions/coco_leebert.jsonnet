// LeeBERT-style on COCO captions (Karpathy's split): Swin and GPT-2.
local captions = import 'beem/captions.libsonnet';
captions.coco + captions.leebert
