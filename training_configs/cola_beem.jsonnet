// CoLA (GLUE): is a sentence acceptable English? Judged by Matthews correlation. BEEM-A on BERT-base, as in the paper's
// Table 2.
(import 'beem/glue.libsonnet').task('cola', model='bert-base-uncased')
