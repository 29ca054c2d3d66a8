//! One place that breaks a rule.

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Finding {
    pub(super) file: String,
    pub(super) line: usize,
    /// What to do about it.
    pub(super) todo: String,
}

impl Finding {
    pub(super) fn new(file: &str, line: usize, todo: impl Into<String>) -> Self {
        Self {
            file: file.to_owned(),
            line,
            todo: todo.into(),
        }
    }
}
