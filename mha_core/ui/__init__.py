"""Streamlit widgets, caches and components of Headscope (the only package beside the pages that imports Streamlit)."""
