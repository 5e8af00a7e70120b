"""A config and its variants: trained once where only the exit policy differs, compared on one table."""
