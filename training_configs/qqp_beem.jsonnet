// QQP (GLUE): do two questions ask the same? BEEM-A on ALBERT-base, as in the paper's Table 1.
(import 'beem/glue.libsonnet').task('qqp')
