// BEEM-A on COCO captions (Karpathy's split): Swin and GPT-2.
import 'captions/coco_beem.jsonnet'
