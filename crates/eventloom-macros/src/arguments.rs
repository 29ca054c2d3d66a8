//! What stands in `#[event(…)]`: read, and refused in words that say what to write instead.

use crate::nearest::{event_type_for, nearest};
use proc_macro2::Span;
use syn::{
    Attribute, Error, Expr, ExprLit, ExprUnary, Ident, Lit, Meta, Path, Result, Token, UnOp,
    ext::IdentExt as _,
    parse::{Parse, ParseStream},
    punctuated::Punctuated,
};

/// `name` or `name = value`.
struct Argument {
    name: Ident,
    value: Option<Expr>,
}

impl Parse for Argument {
    fn parse(input: ParseStream<'_>) -> Result<Self> {
        if input.peek(Lit) {
            return Err(input.error("an argument has a name: write `type = \"order.placed\"`"));
        }
        let name = input.call(Ident::parse_any)?;
        let value = match input.parse::<Option<Token![=]>>()? {
            Some(_) => Some(input.parse()?),
            None => None,
        };
        Ok(Argument { name, value })
    }
}

impl Argument {
    fn span(&self) -> Span {
        self.name.span()
    }

    /// Its value, of which `example` is one.
    fn value(&self, example: &str) -> Result<&Expr> {
        let name = &self.name;
        self.value
            .as_ref()
            .ok_or_else(|| Error::new(self.span(), format!("`{name}` needs a value: write `{example}`")))
    }

    /// Text in quotes.
    fn text(&self, example: &str) -> Result<&syn::LitStr> {
        match self.value(example)? {
            Expr::Lit(ExprLit {
                lit: Lit::Str(text), ..
            }) => Ok(text),
            other => {
                let told = format!("`{}` is text in quotes: write `{example}`", self.name);
                Err(Error::new_spanned(other, told))
            }
        }
    }
}

/// The arguments of every `#[event(…)]` among `attributes`.
fn arguments_of(attributes: &[Attribute], example: &str) -> Result<Vec<Argument>> {
    let mut arguments = Vec::new();
    for attribute in attributes.iter().filter(|attribute| attribute.path().is_ident("event")) {
        let Meta::List(list) = &attribute.meta else {
            return Err(Error::new_spanned(attribute, format!("write `{example}`")));
        };
        arguments.extend(list.parse_args_with(Punctuated::<Argument, Token![,]>::parse_terminated)?);
    }
    Ok(arguments)
}

fn unknown(argument: &Argument, known: &[&str], place: &str) -> Error {
    let all: Vec<String> = known.iter().map(|word| format!("`{word}`")).collect();
    let told = match nearest(&argument.name.to_string(), known) {
        Some(word) => format!("there is no `{}` here; did you mean `{word}`?", argument.name),
        None => format!("there is no `{}` here; {place}: {}", argument.name, all.join(", ")),
    };
    Error::new(argument.span(), told)
}

fn once<T>(seen: &mut Option<T>, argument: &Argument, value: T) -> Result<()> {
    if seen.is_some() {
        return Err(Error::new(
            argument.span(),
            format!("`{}` is said twice; take one away", argument.name),
        ));
    }
    *seen = Some(value);
    Ok(())
}

/// Adds an error to those before it, so that all are told at once.
pub(crate) fn also(errors: &mut Option<Error>, error: Error) {
    match errors {
        Some(errors) => errors.combine(error),
        None => *errors = Some(error),
    }
}

/// What stands above the type.
pub(crate) struct OfType {
    pub(crate) event_type: String,
    pub(crate) version: i32,
    pub(crate) eventloom: Path,
}

impl OfType {
    pub(crate) fn read(attributes: &[Attribute], type_name: &Ident) -> Result<Self> {
        let example = format!("#[event(type = \"{}\")]", event_type_for(&type_name.to_string()));
        let (mut event_type, mut version, mut eventloom) = (None, None, None);
        let mut errors = None;
        let mut misspelt = false;
        for argument in arguments_of(attributes, &example)? {
            let name = argument.name.unraw().to_string();
            let read = match name.as_str() {
                "type" => event_type_of(&argument).and_then(|value| once(&mut event_type, &argument, value)),
                "version" => version_of(&argument).and_then(|value| once(&mut version, &argument, value)),
                "crate" => path_of(&argument).and_then(|value| once(&mut eventloom, &argument, value)),
                "key" => Err(Error::new(
                    argument.span(),
                    "`key` stands on the field that is the key, not above the type",
                )),
                _ => Err(unknown(&argument, &["type", "version", "crate"], "above a type stand")),
            };
            if let Err(error) = read {
                // A `type` that was tried and failed has been told of already.
                misspelt |= name == "type" || nearest(&name, &["type", "version", "crate"]) == Some("type");
                also(&mut errors, error);
            }
        }
        if event_type.is_none() && !misspelt {
            let told = format!("this event has no type: write `{example}` above it");
            also(&mut errors, Error::new(type_name.span(), told));
        }
        match (errors, event_type) {
            (None, Some(event_type)) => Ok(OfType {
                event_type,
                version: version.unwrap_or(1),
                eventloom: eventloom.unwrap_or_else(|| syn::parse_quote!(::eventloom)),
            }),
            (errors, _) => Err(errors.unwrap_or_else(|| Error::new(type_name.span(), "this event has no type"))),
        }
    }
}

fn event_type_of(argument: &Argument) -> Result<String> {
    let text = argument.text("type = \"order.placed\"")?;
    let event_type = text.value();
    if event_type.is_empty() {
        return Err(Error::new(
            text.span(),
            "the type is empty: write what happened, such as \"order.placed\"",
        ));
    }
    let legal = |letter: &char| letter.is_ascii_alphanumeric() || matches!(letter, '.' | '_' | '-');
    match event_type.chars().find(|letter| !legal(letter)) {
        Some(letter) => {
            let told = format!("{letter:?} cannot stand in a type: it has letters a-z A-Z, digits and `.` `_` `-`");
            Err(Error::new(text.span(), told))
        }
        None => Ok(event_type),
    }
}

fn version_of(argument: &Argument) -> Result<i32> {
    let value = argument.value("version = 2")?;
    let refuse = |told: String| Err(Error::new_spanned(value, told));
    let from_one = || "versions begin at 1: write `version = 1`, or leave it out".to_owned();
    match value {
        Expr::Lit(ExprLit {
            lit: Lit::Int(number), ..
        }) => match number.base10_parse::<i32>() {
            Ok(0) => refuse(from_one()),
            Ok(version) => Ok(version),
            Err(_) => refuse(format!("a version is at most {}, without a suffix", i32::MAX)),
        },
        Expr::Unary(ExprUnary { op: UnOp::Neg(_), .. }) => refuse(from_one()),
        Expr::Lit(ExprLit {
            lit: Lit::Str(text), ..
        }) if text.value().parse::<i32>().is_ok_and(|version| version > 0) => refuse(format!(
            "a version is a number, without quotes: write `version = {}`",
            text.value()
        )),
        _ => refuse("a version is a whole number: write `version = 2`".to_owned()),
    }
}

fn path_of(argument: &Argument) -> Result<Path> {
    let text = argument.text("crate = \"eventloom\"")?;
    text.parse().map_err(|_| {
        let told = format!(
            "{:?} is not the path of a crate or module: write `crate = \"eventloom\"`",
            text.value()
        );
        Error::new(text.span(), told)
    })
}

/// Where on a field, if anywhere, it is said to be the key.
pub(crate) fn key_mark(attributes: &[Attribute]) -> Result<Option<Span>> {
    let mut mark = None;
    for argument in arguments_of(attributes, "#[event(key)]")? {
        let span = argument.span();
        match argument.name.unraw().to_string().as_str() {
            "key" if argument.value.is_some() => {
                return Err(Error::new(
                    span,
                    "`key` has no value: the field itself is the key. Write `#[event(key)]`",
                ));
            }
            "key" => once(&mut mark, &argument, span)?,
            name @ ("type" | "version" | "crate") => {
                return Err(Error::new(
                    span,
                    format!("`{name}` stands above the type, not on a field"),
                ));
            }
            _ => return Err(unknown(&argument, &["key"], "on a field stands")),
        }
    }
    Ok(mark)
}

/// Refuses `#[event(…)]` on a variant.
pub(crate) fn nothing_on_variant(attributes: &[Attribute]) -> Result<()> {
    match attributes.iter().find(|attribute| attribute.path().is_ident("event")) {
        Some(attribute) => {
            let told = "nothing of an event is said of a variant: `key` stands on a field, the rest above the type";
            Err(Error::new_spanned(attribute, told))
        }
        None => Ok(()),
    }
}
