// DeeCap on COCO captions (Karpathy's split): Swin and GPT-2.
local captions = import '../lib/captions.libsonnet';
captions.coco + captions.deecap
