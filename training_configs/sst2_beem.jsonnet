// SST-2 (GLUE): is a film review positive? BEEM-A on ALBERT-base, as in the paper's Table 1.
(import 'beem/glue.libsonnet').task('sst2')
