"""Streamlit widgets, caches and components: the only package, beside the pages, that imports Streamlit."""
