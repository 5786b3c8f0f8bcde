//! The fields that a number stands for: those of the standard, and the last that came.

use super::Field;
use std::collections::VecDeque;

/// Bytes that the table of a connection may hold, by the standard's measure.
pub(super) const MOST: usize = 4096;

/// RFC 7541, appendix A.
const STATIC: [(&str, &str); 61] = [
    (":authority", ""),
    (":method", "GET"),
    (":method", "POST"),
    (":path", "/"),
    (":path", "/index.html"),
    (":scheme", "http"),
    (":scheme", "https"),
    (":status", "200"),
    (":status", "204"),
    (":status", "206"),
    (":status", "304"),
    (":status", "400"),
    (":status", "404"),
    (":status", "500"),
    ("accept-charset", ""),
    ("accept-encoding", "gzip, deflate"),
    ("accept-language", ""),
    ("accept-ranges", ""),
    ("accept", ""),
    ("access-control-allow-origin", ""),
    ("age", ""),
    ("allow", ""),
    ("authorization", ""),
    ("cache-control", ""),
    ("content-disposition", ""),
    ("content-encoding", ""),
    ("content-language", ""),
    ("content-length", ""),
    ("content-location", ""),
    ("content-range", ""),
    ("content-type", ""),
    ("cookie", ""),
    ("date", ""),
    ("etag", ""),
    ("expect", ""),
    ("expires", ""),
    ("from", ""),
    ("host", ""),
    ("if-match", ""),
    ("if-modified-since", ""),
    ("if-none-match", ""),
    ("if-range", ""),
    ("if-unmodified-since", ""),
    ("last-modified", ""),
    ("link", ""),
    ("location", ""),
    ("max-forwards", ""),
    ("proxy-authenticate", ""),
    ("proxy-authorization", ""),
    ("range", ""),
    ("referer", ""),
    ("refresh", ""),
    ("retry-after", ""),
    ("server", ""),
    ("set-cookie", ""),
    ("strict-transport-security", ""),
    ("transfer-encoding", ""),
    ("user-agent", ""),
    ("vary", ""),
    ("via", ""),
    ("www-authenticate", ""),
];

/// The last first.
#[derive(Debug)]
pub(super) struct Table {
    came: VecDeque<Field>,
    size: usize,
    limit: usize,
}

impl Table {
    pub(super) fn new() -> Table {
        Table { came: VecDeque::new(), size: 0, limit: MOST }
    }

    /// The field of a number, from 1.
    pub(super) fn get(&self, number: usize) -> Option<Field> {
        let place = number.checked_sub(1)?;
        match STATIC.get(place) {
            Some((name, value)) => Some(Field::known(name, value)),
            None => self.came.get(place - STATIC.len()).cloned(),
        }
    }

    /// Adds one, for which older ones go. One that is larger than the table empties it.
    pub(super) fn add(&mut self, field: Field) {
        self.shrink_to(self.limit.saturating_sub(field.size()));
        if field.size() <= self.limit {
            self.size += field.size();
            self.came.push_front(field);
        }
    }

    /// What the other end wants to use of it; at most [`MOST`].
    pub(super) fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
        self.shrink_to(limit);
    }

    fn shrink_to(&mut self, size: usize) {
        while self.size > size
            && let Some(oldest) = self.came.pop_back()
        {
            self.size -= oldest.size();
        }
    }
}
