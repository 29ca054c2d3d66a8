//! The key of an event: which field it is, and how it becomes text.

use crate::arguments::{also, key_mark, nothing_on_variant};
use proc_macro2::{Span, TokenStream};
use quote::{format_ident, quote, quote_spanned};
use syn::{
    Data, DataEnum, Error, Fields, GenericArgument, Ident, Member, PathArguments, Result, Type, Variant,
    spanned::Spanned as _,
};

/// A field that was marked.
struct Key<'a> {
    member: Member,
    of_type: &'a Type,
    mark: Span,
}

/// The method `key`, or nothing when no field was marked.
pub(crate) fn method(data: &Data) -> Result<TokenStream> {
    let body = match data {
        Data::Struct(data) => key_of(&data.fields)?.map(|key| {
            let member = &key.member;
            let text = text_of(key.of_type, &quote!(&self.#member));
            quote!(#text)
        }),
        Data::Enum(data) => of_variants(data)?,
        Data::Union(_) => None,
    };
    let Some(body) = body else {
        return Ok(TokenStream::new());
    };
    let as_key = trait_of_keys();
    Ok(quote! {
        fn key(&self) -> ::core::option::Option<::std::borrow::Cow<'_, str>> {
            #as_key
            #body
        }
    })
}

/// The one marked field of a struct or a variant.
fn key_of(fields: &Fields) -> Result<Option<Key<'_>>> {
    let (mut found, mut errors) = (None::<Key<'_>>, None);
    for (field, member) in fields.iter().zip(fields.members()) {
        match (key_mark(&field.attrs), &found) {
            (Err(error), _) => also(&mut errors, error),
            (Ok(None), _) => {}
            (Ok(Some(mark)), None) => {
                found = Some(Key {
                    member,
                    of_type: &field.ty,
                    mark,
                })
            }
            (Ok(Some(mark)), Some(first)) => {
                let first = name_of(&first.member);
                let told = format!(
                    "an event has one key, and {first} is it already: mark one of them; for a key of both, \
                     keep a field that holds it"
                );
                also(&mut errors, Error::new(mark, told));
            }
        }
    }
    errors.map_or(Ok(found), Err)
}

fn name_of(member: &Member) -> String {
    match member {
        Member::Named(name) => format!("`{name}`"),
        Member::Unnamed(index) => format!("field {}", index.index),
    }
}

/// A match over all variants, when each has a key.
fn of_variants(data: &DataEnum) -> Result<Option<TokenStream>> {
    let (mut keys, mut errors) = (Vec::new(), None);
    for variant in &data.variants {
        match nothing_on_variant(&variant.attrs).and_then(|()| key_of(&variant.fields)) {
            Ok(key) => keys.push((variant, key)),
            Err(error) => also(&mut errors, error),
        }
    }
    if let Some(errors) = errors {
        return Err(errors);
    }
    let Some((with_key, mark)) = keys
        .iter()
        .find_map(|(variant, key)| key.as_ref().map(|key| (&variant.ident, key.mark)))
    else {
        return Ok(None);
    };
    let mut arms = Vec::new();
    for (variant, key) in &keys {
        match key {
            Some(key) => arms.push(arm(variant, key)),
            None => also(&mut errors, without_key(variant, with_key)),
        }
    }
    match errors {
        Some(mut errors) => {
            errors.combine(Error::new(
                mark,
                "the key of one variant: all of them have one, or none",
            ));
            Err(errors)
        }
        None => Ok(Some(quote!(match self { #(#arms)* }))),
    }
}

fn arm(variant: &Variant, key: &Key<'_>) -> TokenStream {
    let (name, member) = (&variant.ident, &key.member);
    let bound = format_ident!("__key");
    let text = text_of(key.of_type, &quote!(#bound));
    quote!(Self::#name { #member: #bound, .. } => #text,)
}

fn without_key(variant: &Variant, with_key: &Ident) -> Error {
    let name = &variant.ident;
    let what_to_do = match variant.fields.is_empty() {
        true => "give it a field that is its key, marked with `#[event(key)]`",
        false => "mark one of its fields with `#[event(key)]`",
    };
    Error::new(
        name.span(),
        format!("variant `{name}` has no key, but `{with_key}` has one: {what_to_do}"),
    )
}

/// An expression of `Option<Cow<str>>` for a reference to a value of this type.
fn text_of(of_type: &Type, value: &TokenStream) -> TokenStream {
    // Decided by how the type is written: a trait cannot tell text from what else displays without specialisation. An
    // alias of text is only written out instead of borrowed.
    let of_type = bare(of_type);
    if let Some(inner) = argument_of(of_type, "Option") {
        let inner = text_of(inner, &quote!(__value));
        return quote!(::core::option::Option::and_then(::core::option::Option::as_ref(#value), |__value| #inner));
    }
    // The place of the type is where a missing `Display` is told.
    match is_text(of_type) {
        true => quote_spanned! {of_type.span()=>
            ::core::option::Option::Some(::std::borrow::Cow::Borrowed(::core::convert::AsRef::<str>::as_ref(#value)))
        },
        false => quote_spanned! {of_type.span()=>
            ::core::option::Option::Some(::std::borrow::Cow::Owned(<#of_type as __AsKey>::__written(#value)))
        },
    }
}

fn is_text(of_type: &Type) -> bool {
    let is_str = |inner: &Type| matches!(inner, Type::Path(path) if path.path.is_ident("str"));
    let holds_str = ["Box", "Arc", "Rc", "Cow"]
        .into_iter()
        .filter_map(|name| argument_of(of_type, name))
        .any(is_str);
    let is_string = matches!(of_type, Type::Path(path)
        if path.qself.is_none() && path.path.segments.last().is_some_and(|last| last.ident == "String"));
    is_string || holds_str
}

/// The type itself: a macro by example wraps the types that it passes on.
fn bare(of_type: &Type) -> &Type {
    match of_type {
        Type::Group(group) => bare(&group.elem),
        Type::Paren(paren) => bare(&paren.elem),
        other => other,
    }
}

/// `T` of `Name<T>`, also behind a path and a lifetime.
fn argument_of<'a>(of_type: &'a Type, name: &str) -> Option<&'a Type> {
    let Type::Path(path) = of_type else { return None };
    let last = path
        .path
        .segments
        .last()
        .filter(|last| path.qself.is_none() && last.ident == name)?;
    let PathArguments::AngleBracketed(arguments) = &last.arguments else {
        return None;
    };
    let mut types = arguments.args.iter().filter_map(|argument| match argument {
        GenericArgument::Type(of_type) => Some(bare(of_type)),
        _ => None,
    });
    types.next().filter(|_| types.next().is_none())
}

/// A trait whose only purpose is its message: `Display` alone would not say that a key is meant.
fn trait_of_keys() -> TokenStream {
    quote! {
        #[diagnostic::on_unimplemented(
            message = "`{Self}` cannot be the key of an event",
            label = "does not implement `Display`",
            note = "a key is a `String`, or anything that implements `Display`: a number, a `Uuid`, a newtype; or an `Option` of one"
        )]
        #[allow(dead_code)]
        trait __AsKey {
            fn __written(&self) -> ::std::string::String;
        }
        #[diagnostic::do_not_recommend]
        impl<T: ::core::fmt::Display + ?Sized> __AsKey for T {
            fn __written(&self) -> ::std::string::String {
                ::std::string::ToString::to_string(self)
            }
        }
    }
}
