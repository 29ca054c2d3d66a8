//! Compile errors are part of the product: what a user gets wrong about handlers, and what the compiler says of it.

#[test]
fn messages() {
    let cases = trybuild::TestCases::new();
    cases.compile_fail("tests/ui/event_without_derive.rs");
    cases.compile_fail("tests/ui/error_without_classify.rs");
    cases.compile_fail("tests/ui/closure_that_captures.rs");
    #[cfg(feature = "postgres")]
    cases.compile_fail("tests/ui/context_of_another_store.rs");
}
