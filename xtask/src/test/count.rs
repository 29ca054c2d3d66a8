//! What passed and what failed, read from the lines that the test harness of Rust prints.

use std::ops::AddAssign;

#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Count {
    pub(super) passed: u64,
    pub(super) failed: u64,
    /// Ignored tests, with their reason if they give one.
    pub(super) ignored: Vec<String>,
}

impl Count {
    /// A step that is one thing.
    pub(super) fn one(passed: bool) -> Self {
        Self {
            passed: u64::from(passed),
            failed: u64::from(!passed),
            ignored: Vec::new(),
        }
    }

    /// Adds what a line of output says, if it says anything.
    pub(super) fn read(&mut self, line: &str) {
        if let Some((passed, failed)) = result_of(line) {
            self.passed += passed;
            self.failed += failed;
        } else if let Some(test) = ignored_in(line) {
            self.ignored.push(test);
        }
    }
}

impl AddAssign for Count {
    fn add_assign(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.ignored.extend(other.ignored);
    }
}

/// `test result: ok. 3 passed; 0 failed; 1 ignored; ...`
fn result_of(line: &str) -> Option<(u64, u64)> {
    let (_, counts) = line.strip_prefix("test result: ")?.split_once(". ")?;
    let number_of = |what: &str| {
        let part = counts.split(';').find(|part| part.trim().ends_with(what))?;
        part.split_whitespace().next()?.parse().ok()
    };
    Some((number_of("passed")?, number_of("failed")?))
}

/// `test name ... ignored, reason`
fn ignored_in(line: &str) -> Option<String> {
    let (name, reason) = line.strip_prefix("test ")?.trim_end().split_once(" ... ignored")?;
    let reason = reason.strip_prefix(", ").unwrap_or("ignored, without a reason");
    Some(format!("{name}: {reason}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(output: &str, passed: u64, failed: u64, ignored: &[&str]) {
        let mut count = Count::default();
        output.lines().for_each(|line| count.read(line));
        let ignored = ignored.iter().map(ToString::to_string).collect();
        assert_eq!(
            count,
            Count {
                passed,
                failed,
                ignored
            },
            "{output}"
        );
    }

    #[test]
    fn output_of_cargo_test() {
        check("", 0, 0, &[]);
        check("running 2 tests\ntest a ... ok\ntest b ... FAILED", 0, 0, &[]);
        check(
            "test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s",
            12,
            0,
            &[],
        );
        check(
            "test result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s\n\
             test result: ok. 4 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.25s",
            5,
            2,
            &[],
        );
        check(
            "test slow::one ... ignored, needs an hour\ntest two ... ignored",
            0,
            0,
            &["slow::one: needs an hour", "two: ignored, without a reason"],
        );
        check("my test result: ok. 5 passed; 0 failed", 0, 0, &[]);
    }
}
