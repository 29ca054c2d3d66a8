//! What both suites make of their lists of cases: a table to run, names to tell, and one test of each.

/// The cases of a list, as values.
macro_rules! table {
    ($($topic:ident: $($case:ident)+;)+) => {
        vec![$($(
            $crate::store::Case {
                name: concat!(stringify!($topic), "::", stringify!($case)),
                run: |fixture| Box::pin($topic::$case(fixture)),
            },
        )+)+]
    };
}

/// The names of a list.
macro_rules! names {
    ($($topic:ident: $($case:ident)+;)+) => {
        &[$($(concat!(stringify!($topic), "::", stringify!($case)),)+)+]
    };
}

/// A `#[test]` of each case, which `$run` runs on a fixture.
#[doc(hidden)]
#[macro_export]
macro_rules! suite_tests {
    ([$run:path, $fixture:expr] $($topic:ident: $($case:ident)+;)+) => {
        $(
            mod $topic {
                #[allow(unused_imports)]
                use super::*;
                $(
                    #[test]
                    fn $case() {
                        let name = concat!(stringify!($topic), "::", stringify!($case));
                        $run(name, async { $fixture });
                    }
                )+
            }
        )+
    };
}
