// QNLI (GLUE): does the sentence answer the question? BEEM-A on ALBERT-base, as in the paper's Table 1.
(import 'beem/glue.libsonnet').task('qnli')
