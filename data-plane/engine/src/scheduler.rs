//! Decides what runs in each step.
