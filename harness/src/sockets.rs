//! Whether the peers of a process have read what it has sent: the kernel's table of TCP connections tells.

use std::{collections::HashSet, fs};

/// One connection as one of its ends sees it.
#[derive(Debug, PartialEq, Eq)]
struct End {
    local: String,
    remote: String,
    /// Bytes that the other end has not got, and bytes that nobody has read here.
    unsent: u64,
    unread: u64,
    inode: String,
}

/// Whether nothing that this process has sent is still under way, or unread by a process of this machine. `true` where the
/// kernel keeps no such table.
pub(crate) fn all_was_read(pid: i32) -> bool {
    let table = ["/proc/net/tcp", "/proc/net/tcp6"].map(|path| fs::read_to_string(path).unwrap_or_default());
    is_read(&table.concat(), &inodes(pid))
}

/// The sockets that a process has open.
fn inodes(pid: i32) -> HashSet<String> {
    let open = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let links = open.filter_map(|entry| fs::read_link(entry.path()).ok());
    links
        .filter_map(|link| Some(link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned()))
        .collect()
}

fn is_read(table: &str, inodes: &HashSet<String>) -> bool {
    let ends: Vec<End> = table.lines().filter_map(end).collect();
    let mine = || ends.iter().filter(|end| inodes.contains(&end.inode));
    mine().all(|mine| {
        let is_peer = |end: &&End| end.local == mine.remote && end.remote == mine.local;
        mine.unsent == 0 && ends.iter().filter(is_peer).all(|peer| peer.unread == 0)
    })
}

/// `sl local remote st tx:rx tr:when retransmits uid timeout inode …`, in hexadecimal but for the inode.
fn end(line: &str) -> Option<End> {
    let columns: Vec<&str> = line.split_whitespace().collect();
    let (unsent, unread) = columns.get(4)?.split_once(':')?;
    Some(End {
        local: (*columns.get(1)?).to_owned(),
        remote: (*columns.get(2)?).to_owned(),
        unsent: u64::from_str_radix(unsent, 16).ok()?,
        unread: u64::from_str_radix(unread, 16).ok()?,
        inode: (*columns.get(9)?).to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_under_way_is_seen_at_either_end() {
        let table = |unsent: &str, unread: &str| {
            format!(
                "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n   \
                 0: 0100007F:C001 0100007F:62B8 01 {unsent}:00000007 00:00000000 00000000     0        0 17 1 x\n   \
                 1: 0100007F:62B8 0100007F:C001 01 00000000:{unread} 00:00000000 00000000     0        0 18 1 x\n   \
                 2: 0100007F:62B8 0100007F:C002 01 00000009:00000009 00:00000000 00000000     0        0 19 1 x\n"
            )
        };
        let mine = HashSet::from(["17".to_owned()]);
        assert!(is_read(&table("00000000", "00000000"), &mine));
        assert!(!is_read(&table("00000001", "00000000"), &mine));
        assert!(!is_read(&table("00000000", "0000000A"), &mine));
    }
}
