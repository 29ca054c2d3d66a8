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
    let pages = fs::read_dir(folder).map_err(failed)?.count();
    talk(&format!("{pages} files are in {}", folder.display()));
    Ok(Exit::Done)
}
