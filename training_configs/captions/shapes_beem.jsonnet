// BEEM-A on generated scenes of shapes: trains in minutes on a CPU, and downloads nothing.
local captions = import '../lib/captions.libsonnet';
captions.shapes + captions.beem_a
