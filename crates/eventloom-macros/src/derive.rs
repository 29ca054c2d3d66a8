//! `impl Event` for a type.

use crate::{
    arguments::{OfType, also},
    key,
};
use proc_macro2::TokenStream;
use quote::{quote, quote_spanned};
use syn::{Data, DeriveInput, Error, Result};

pub(crate) fn event(input: &DeriveInput) -> Result<TokenStream> {
    owns_its_data(input)?;
    let (of_type, key) = (OfType::read(&input.attrs, &input.ident), key::method(&input.data));
    let (
        OfType {
            event_type,
            version,
            eventloom,
        },
        key,
    ) = match (of_type, key) {
        (Ok(of_type), Ok(key)) => (of_type, key),
        (of_type, key) => return Err(all_of([of_type.err(), key.err()], input)),
    };
    let name = &input.ident;
    let (generics, arguments, bounds) = input.generics.split_for_impl();
    // At the type's name: what the trait asks for and is missing is told there.
    let trait_for = quote_spanned!(name.span()=> #eventloom::Event for #name #arguments);
    Ok(quote! {
        #[automatically_derived]
        impl #generics #trait_for #bounds {
            const TYPE: &'static str = #event_type;
            const VERSION: i32 = #version;
            #key
        }
    })
}

/// What can be told without reading further.
fn owns_its_data(input: &DeriveInput) -> Result<()> {
    if let Data::Union(union) = &input.data {
        let told = "a union cannot be an event: use a struct, or an enum with a variant for each of its forms";
        return Err(Error::new(union.union_token.span, told));
    }
    let mut errors = None;
    for lifetime in input.generics.lifetimes() {
        let told =
            "an event owns its data, so it has no lifetime: use `String` instead of `&str`, `Vec<T>` instead of `&[T]`";
        also(&mut errors, Error::new(lifetime.lifetime.span(), told));
    }
    errors.map_or(Ok(()), Err)
}

fn all_of(errors: [Option<Error>; 2], input: &DeriveInput) -> Error {
    let mut all = None;
    for error in errors.into_iter().flatten() {
        also(&mut all, error);
    }
    all.unwrap_or_else(|| Error::new(input.ident.span(), "this type cannot be an event"))
}
