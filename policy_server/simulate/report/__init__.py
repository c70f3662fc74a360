"""The HTML report: one self-contained file for people who have never seen the project."""
