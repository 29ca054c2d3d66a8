//! Many small sites for many small runs: empty ones, and copies of one that was prepared.

use crate::{
    server::Server,
    site::{Site, StoreKind},
};
use anyhow::{Context, Result};
use sqlx::{AssertSqlSafe, Connection, PgConnection};
use std::{
    fs,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU32, Ordering},
};

/// Where sites are made.
#[derive(Debug)]
pub(crate) struct Ground {
    folder: PathBuf,
    server: Option<Server>,
    sites: AtomicU32,
}

impl Ground {
    pub(crate) async fn new(store: StoreKind, folder: &Path) -> Result<Self> {
        let server = match store {
            StoreKind::Sqlite => None,
            // Processes end here, never the machine: the flush is left out.
            StoreKind::Postgres => Some(Server::start(folder, false).await?),
        };
        Ok(Ground {
            folder: folder.to_path_buf(),
            server,
            sites: AtomicU32::new(0),
        })
    }

    /// An empty site.
    pub(crate) async fn empty(&self) -> Result<Site> {
        self.make(None).await
    }

    /// A copy of a site that nobody works on.
    pub(crate) async fn copy_of(&self, site: &Site) -> Result<Site> {
        self.make(Some(site)).await
    }

    async fn make(&self, template: Option<&Site>) -> Result<Site> {
        let name = format!("site_{}", self.sites.fetch_add(1, Ordering::Relaxed));
        let folder = self.folder.join(&name);
        if let Some(template) = template {
            copy(&template.folder, &folder)?;
        }
        let Some(server) = &self.server else {
            return Site::sqlite(&folder);
        };
        let mut create = format!("CREATE DATABASE {name}");
        if let Some(template) = template {
            create += &format!(" TEMPLATE {}", database_of(template)?);
        }
        self.administer(create).await?;
        Site::new(Server::url(server.port, &name), &folder)
    }

    /// Removes a site.
    pub(crate) async fn discard(&self, site: Site) -> Result<()> {
        if self.server.is_some() {
            self.administer(format!("DROP DATABASE {} WITH (FORCE)", database_of(&site)?))
                .await?;
        }
        fs::remove_dir_all(&site.folder)?;
        Ok(())
    }

    async fn administer(&self, sql: String) -> Result<()> {
        let server = self.server.as_ref().context("no server")?;
        let mut connection = PgConnection::connect(&Server::url(server.port, "postgres")).await?;
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut connection).await?;
        connection.close().await?;
        Ok(())
    }

    /// Ends the server and removes everything, unless it is to be kept.
    pub(crate) fn close(mut self, keep: bool) -> Result<()> {
        if let Some(server) = &mut self.server {
            server.stop()?;
        }
        if keep {
            println!("logs and data: {}", self.folder.display());
        } else {
            fs::remove_dir_all(&self.folder)?;
        }
        Ok(())
    }
}

fn database_of(site: &Site) -> Result<&str> {
    let name = site.url.rsplit('/').next().and_then(|end| end.split('?').next());
    name.context("a URL that ends with a database")
}

/// Files and one level of folders: what a site consists of.
fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}
