//! One run: its folder, its input, and where it stands; begun anew, or gone on with.

use crate::{
    arguments::Arguments,
    consume::{Group, RELAY},
    input::Input,
    mail::MailCount,
    store::{RunRow, Shop, ShopError, Standing},
};
use anyhow::{Context, bail};
use eventloom::{ConsumerName, ports::Start};
use orders_ledger::{Database, grouped};
use std::{
    fs::{File, OpenOptions, TryLockError},
    io::Write,
    path::{Path, PathBuf},
};

/// The data folder. One run at a time works in it.
pub(crate) struct Folder {
    path: PathBuf,
    _lock: Option<File>,
}

impl Folder {
    /// The folder, for the processes of a run that has claimed it.
    pub(crate) fn of(path: PathBuf) -> Self {
        Folder { path, _lock: None }
    }

    /// Makes the folder, and keeps other runs out of it. The kernel frees it when this process ends, however it ends.
    pub(crate) fn claim(path: PathBuf) -> anyhow::Result<Self> {
        let shown = path.display();
        std::fs::create_dir_all(&path)
            .with_context(|| format!("cannot make the folder {shown}; give another one with --data"))?;
        let lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(path.join("orders.lock"));
        let lock = lock.with_context(|| format!("cannot write in {shown}; give another folder with --data"))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                bail!("another run works in {shown}; wait until it has ended, or give another folder with --data")
            }
            Err(TryLockError::Error(error)) => tracing::warn!(%error, "files cannot be locked here"),
        }
        Ok(Folder {
            path,
            _lock: Some(lock),
        })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn log_file(&self) -> PathBuf {
        self.path.join("orders.log")
    }

    /// Deletes the files of a former run, and no other.
    pub(crate) fn clear(&self) -> anyhow::Result<()> {
        for entry in std::fs::read_dir(&self.path)? {
            let entry = entry?;
            let name = entry.file_name();
            let name = name.to_string_lossy();
            let mail = name.starts_with("mail-") && name.ends_with(".txt");
            let database = name == "orders.db" || name.starts_with("orders.db-");
            if mail || database || name == "orders.log" {
                let path = entry.path();
                std::fs::remove_file(&path).with_context(|| format!("cannot delete {}", path.display()))?;
            }
        }
        Ok(())
    }
}

/// Everything that one run needs.
pub(crate) struct Run<S, B> {
    pub(crate) shop: S,
    /// Where the groups follow the log: the shop itself, or the database that a relay hands its events to.
    pub(crate) market: B,
    /// The market is another database than the shop's.
    pub(crate) relays: bool,
    pub(crate) arguments: Arguments,
    pub(crate) database: Database,
    /// Where the market is.
    pub(crate) effects: Database,
    pub(crate) folder: Folder,
    pub(crate) input: Input,
    /// How many of the purchases are to be placed.
    pub(crate) purchases: usize,
    pub(crate) mailbox: PathBuf,
    pub(crate) kills: Option<u32>,
    /// Nothing had happened before this start.
    pub(crate) is_new: bool,
}

impl<S: Shop, B: Shop> Run<S, B> {
    /// Begins a run, or finds out where it stands, and says so.
    pub(crate) async fn begin(shop: S, market: B, arguments: Arguments, folder: Folder) -> anyhow::Result<Self> {
        let input = Input::read(arguments.input.as_deref())?;
        let purchases = arguments.limit.unwrap_or(usize::MAX).min(input.purchases.len());
        let found = shop.run().await?;
        let relays = shop.log_status().await?.identity != market.log_status().await?.identity;
        let standing = standing_of(&shop, &market).await?;
        let row = match found {
            Some(row) => gone_on_with(row, &input, purchases, standing.placed)?,
            None => begun(&shop, &market, &input, purchases).await?,
        };
        shop.save_run(&row).await?;
        if relays {
            // So that the ledger finds there what it is about.
            market.save_run(&row).await?;
        }
        let mailbox = folder.path().join(&row.mail_file);
        if standing.placed == 0 {
            // Nothing was placed before this point is passed, so no group begins too late. One that had begun stays
            // where it is.
            for group in Group::ALL {
                market
                    .register(&ConsumerName::parse(group.name())?, Start::Latest, None)
                    .await?;
            }
            if relays {
                shop.register(&ConsumerName::parse(RELAY)?, Start::Latest, None).await?;
            }
            OpenOptions::new().create(true).append(true).open(&mailbox)?;
        }
        let mailed = MailCount::of(&mailbox).look().with_context(|| {
            format!(
                "the mailer's file {} of this run is gone; give its folder with --data, or --fresh",
                mailbox.display()
            )
        })?;
        let database = arguments.database()?;
        let count = grouped(purchases as u64);
        writeln!(std::io::stdout(), "Store  {}", database.place())?;
        let effects = arguments.broker()?.unwrap_or(database.clone());
        match (arguments.broker()?.is_some(), relays) {
            (true, true) => writeln!(std::io::stdout(), "Broker {}", effects.place())?,
            (true, false) => writeln!(
                std::io::stdout(),
                "Broker the same database, so nothing needs to be relayed"
            )?,
            (false, _) => {}
        }
        writeln!(std::io::stdout(), "Input  {}: {count} purchases", input.name)?;
        let groups = [standing.totals, standing.revenue, mailed];
        if standing.placed == purchases as u64 && groups.iter().all(|done| *done >= standing.placed) {
            writeln!(
                std::io::stdout(),
                "All of it was placed and handled before; --fresh begins anew."
            )?;
        } else if standing.placed > 0 {
            let [totals, revenue, mailed] = groups.map(grouped);
            writeln!(
                std::io::stdout(),
                "Goes on where it was: {} of {count} placed; handled by totals {totals}, revenue {revenue}, mailer {mailed}.",
                grouped(standing.placed)
            )?;
        }
        let (kills, is_new) = (arguments.kill, standing.placed == 0);
        Ok(Run {
            shop,
            market,
            relays,
            arguments,
            database,
            effects,
            folder,
            input,
            purchases,
            mailbox,
            kills,
            is_new,
        })
    }
}

fn gone_on_with(mut row: RunRow, input: &Input, purchases: usize, placed: u64) -> anyhow::Result<RunRow> {
    if row.input_sha256 != input.sha256 {
        bail!(
            "here, orders were placed from {}, and {} is another input; give the same one, another folder with --data \
             (or another database), or begin anew with --fresh",
            row.input_name,
            input.name
        );
    }
    if (purchases as u64) < placed {
        bail!(
            "--limit {purchases} is less than the {placed} orders that are placed already; leave it out, or begin anew \
             with --fresh"
        );
    }
    row.purchases = purchases as i64;
    Ok(row)
}

/// How far everything is: placed in the shop, handled in the market.
pub(crate) async fn standing_of<S: Shop, B: Shop>(shop: &S, market: &B) -> Result<Standing, ShopError> {
    let placed = Shop::standing(shop).await?.placed;
    Ok(Standing {
        placed,
        ..Shop::standing(market).await?
    })
}

async fn begun<S: Shop, B: Shop>(shop: &S, market: &B, input: &Input, purchases: usize) -> anyhow::Result<RunRow> {
    let mut readers = shop.readers(None).await?;
    readers.extend(market.readers(None).await?);
    if let Some(reader) = readers
        .iter()
        .find(|reader| reader.name == RELAY || Group::ALL.iter().any(|group| group.name() == reader.name))
    {
        bail!(
            "a consumer {:?} is registered at {} and no run of this example is; if it is left over from one, --fresh \
             drops it, otherwise give another database",
            reader.name,
            shop.place()
        );
    }
    Ok(RunRow {
        input_name: input.name.clone(),
        input_sha256: input.sha256.clone(),
        purchases: purchases as i64,
        // A name of its own: two databases may share a folder.
        mail_file: format!("mail-{:08x}.txt", fastrand::u32(..)),
    })
}
