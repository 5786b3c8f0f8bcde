//! HPACK's static and dynamic tables of header fields.

use super::Field;
use std::collections::VecDeque;

/// Largest size of a connection's dynamic table, measured as in RFC 7541, section 4.1, bytes.
pub(super) const MAX_TABLE_SIZE: usize = 4096;

/// The static table (RFC 7541, appendix A).
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

/// The dynamic table, newest field first.
#[derive(Debug)]
pub(super) struct Table {
    dynamic: VecDeque<Field>,
    size: usize,
    limit: usize,
}

impl Table {
    pub(super) fn new() -> Table {
        Table { dynamic: VecDeque::new(), size: 0, limit: MAX_TABLE_SIZE }
    }

    /// Returns the field with the index `number`; indices begin at 1, and the dynamic table follows the
    /// static table.
    pub(super) fn get(&self, number: usize) -> Option<Field> {
        let index = number.checked_sub(1)?;
        match STATIC.get(index) {
            Some((name, value)) => Some(Field::from_static(name, value)),
            None => self.dynamic.get(index - STATIC.len()).cloned(),
        }
    }

    /// Adds a field, after evicting the oldest fields until it fits. A field larger than the table's limit
    /// empties the table and is not added (RFC 7541, section 4.4).
    pub(super) fn add(&mut self, field: Field) {
        self.shrink_to(self.limit.saturating_sub(field.size()));
        if field.size() <= self.limit {
            self.size += field.size();
            self.dynamic.push_front(field);
        }
    }

    /// Sets the limit on the table's size that the client's encoder has announced, at most
    /// [`MAX_TABLE_SIZE`].
    pub(super) fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
        self.shrink_to(limit);
    }

    fn shrink_to(&mut self, size: usize) {
        while self.size > size
            && let Some(oldest) = self.dynamic.pop_back()
        {
            self.size -= oldest.size();
        }
    }
}
