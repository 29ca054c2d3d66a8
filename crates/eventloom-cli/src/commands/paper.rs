//! `eventloom completions` and `eventloom man`: what a package of the program puts beside it.

use crate::{
    arguments::Arguments,
    failure::{Exit, Failure},
    output::{Output, talk},
};
use clap::CommandFactory;
use clap_complete::Shell;
use std::{fs, path::PathBuf};

const COMPLETIONS: &str = "\
Examples:
  eventloom completions bash > /usr/share/bash-completion/completions/eventloom
  eventloom completions zsh > ~/.zfunc/_eventloom
  eventloom completions fish > ~/.config/fish/completions/eventloom.fish";

const MAN: &str = "\
Examples:
  eventloom man ~/.local/share/man/man1
  eventloom man ./man && man ./man/eventloom-relay.1";

/// Print the completions of a shell to stdout
#[derive(Debug, clap::Args)]
#[command(after_help = COMPLETIONS)]
pub(crate) struct Completions {
    /// The shell
    #[arg(value_enum)]
    shell: Shell,
}

/// Write the man pages, one for each command, into a folder
#[derive(Debug, clap::Args)]
#[command(after_help = MAN)]
pub(crate) struct Man {
    /// The folder, which is made when it is missing, such as ~/.local/share/man/man1
    #[arg(value_name = "DIR")]
    folder: PathBuf,
}

pub(crate) fn completions(arguments: Completions) -> Result<Exit, Failure> {
    let mut text = Vec::new();
    clap_complete::generate(arguments.shell, &mut Arguments::command(), "eventloom", &mut text);
    let mut output = Output::new();
    output.line(&String::from_utf8_lossy(&text))?;
    output.flush()?;
    Ok(Exit::Done)
}

pub(crate) fn man(arguments: &Man) -> Result<Exit, Failure> {
    let folder = &arguments.folder;
    let failed = |error: std::io::Error| Failure::new(format!("cannot write into {}: {error}", folder.display()));
    fs::create_dir_all(folder).map_err(failed)?;
    clap_mangen::generate_to(Arguments::command(), folder).map_err(failed)?;
    let mut pages = 0;
    for entry in fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        // The folder may have pages of other programs.
        if name == "eventloom.1" || (name.starts_with("eventloom-") && name.ends_with(".1")) {
            let text = fs::read_to_string(&path).map_err(failed)?;
            fs::write(&path, unfilled(&text)).map_err(failed)?;
            pages += 1;
        }
    }
    talk(&format!("{pages} man pages are in {}", folder.display()));
    Ok(Exit::Done)
}

/// Examples keep their lines: filled and justified, a command cannot be copied.
fn unfilled(page: &str) -> String {
    let mut text = String::with_capacity(page.len());
    let mut is_unfilled = false;
    for line in page.lines() {
        if is_unfilled && line.starts_with(".SH") {
            text.push_str(".fi\n");
            is_unfilled = false;
        }
        if line == ".SH EXTRA" {
            text.push_str(".SH \"EXAMPLES AND NOTES\"\n.nf\n");
            is_unfilled = true;
        } else {
            text.push_str(line);
            text.push('\n');
        }
    }
    text
}
