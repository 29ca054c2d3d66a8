//! `eventloom config show`: every setting in force, and where it came from.

use crate::{
    failure::{Exit, Failure},
    output::{Output, plain, table},
    secrets,
    settings::{Key, Origin, Settings, Unsaid},
};
use serde::Serialize;

const EXAMPLES: &str = "\
Examples:
  eventloom config show
  eventloom config show --json | jq -r 'select(.name == \"relay.to\") | .value'

Flags win over the environment, the environment over the file. Passwords are masked.";

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Verb {
    Show(Show),
}

/// Show each setting in force: its value, and the flag, variable or line of the file that it came from
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Show {
    /// Print each setting as a line of JSON
    #[arg(long, conflicts_with = "quiet")]
    json: bool,
    /// Print the names of what was said alone, without what holds by default
    #[arg(long, short)]
    quiet: bool,
}

/// A setting, for programs.
#[derive(Serialize)]
struct Setting {
    name: &'static str,
    value: Option<String>,
    /// `flag`, `environment`, `file` or `default`.
    from: &'static str,
    flag: &'static str,
    variable: &'static str,
    file: Option<String>,
    line: Option<usize>,
    #[serde(skip)]
    origin: Origin,
    /// What it means that there is no value.
    #[serde(skip)]
    nothing: &'static str,
}

pub(crate) fn run(Verb::Show(show): Verb, settings: &Settings) -> Result<Exit, Failure> {
    let all: Vec<Setting> = Key::ALL.into_iter().map(|key| setting(key, settings)).collect();
    // What cannot work is told here rather than by the daemon.
    settings.check_relay()?;
    let mut output = Output::new();
    if show.json {
        all.iter().try_for_each(|setting| output.json(setting))?;
    } else if show.quiet {
        let said = all.iter().filter(|setting| setting.origin != Origin::Default);
        said.into_iter().try_for_each(|setting| output.line(setting.name))?;
    } else {
        let rows = all.iter().map(|setting| {
            let value = match &setting.value {
                Some(value) => plain(value).into_owned(),
                None => format!("({})", setting.nothing),
            };
            vec![setting.name.to_owned(), value, setting.origin.to_string()]
        });
        output.line(&table(&["SETTING", "VALUE", "FROM"], rows.collect()))?;
    }
    output.flush()?;
    Ok(Exit::Done)
}

fn setting(key: Key, settings: &Settings) -> Setting {
    let value = settings.values.in_force(key);
    let origin = value.as_ref().map_or(Origin::Default, |value| value.origin.clone());
    let (file, line) = match &origin {
        Origin::File { path, line } => (Some(path.clone()), Some(*line)),
        _ => (None, None),
    };
    let text = value.map(|value| match key.is_place() {
        true => secrets::of_store(&value.text),
        false => secrets::without_passwords(&value.text).into_owned(),
    });
    Setting {
        name: key.name(),
        value: text,
        from: match &origin {
            Origin::Flag(_) => "flag",
            Origin::Variable(_) => "environment",
            Origin::File { .. } => "file",
            Origin::Default => "default",
        },
        flag: key.flag(),
        variable: key.variable(),
        file,
        line,
        origin,
        nothing: match key.unsaid() {
            Unsaid::Nothing(meaning) => meaning,
            Unsaid::Value(_) => "",
        },
    }
}
