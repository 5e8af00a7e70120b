// MNLI (GLUE): does the second sentence follow from the first, contradict it, or neither? BEEM-A on ALBERT-base, as in the
// paper's Table 1. Both development sets are reported, and their mean.
(import 'beem/glue.libsonnet').task('mnli')
