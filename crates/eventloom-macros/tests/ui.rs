//! Compile errors are part of the product: each fixture's message is kept beside it.

#[test]
fn messages() {
    trybuild::TestCases::new().compile_fail("tests/ui/*.rs");
}
