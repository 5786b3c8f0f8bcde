//! Message types at run time: descriptors of messages, fields and enums, read from a `FileDescriptorSet`.

use super::budget::{Budget, Failure};
use super::escape::unescaped;
use bytes::Bytes;
use checkpoint::proto::{Field as WireField, Fields, Malformed};
use device::cancel::Cancellation;
use device::{Error, Result};
use graph::tensor::memory_limit;
use rustc_hash::FxHashMap;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The type of a field, with protocol buffers' number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Double = 1,
    Float = 2,
    Int64 = 3,
    UInt64 = 4,
    Int32 = 5,
    Fixed64 = 6,
    Fixed32 = 7,
    Bool = 8,
    String = 9,
    Group = 10,
    Message = 11,
    Bytes = 12,
    UInt32 = 13,
    Enum = 14,
    SFixed32 = 15,
    SFixed64 = 16,
    SInt32 = 17,
    SInt64 = 18,
}

/// All types, in the order of their numbers from 1 on.
const KINDS: [Kind; 18] = [
    Kind::Double,
    Kind::Float,
    Kind::Int64,
    Kind::UInt64,
    Kind::Int32,
    Kind::Fixed64,
    Kind::Fixed32,
    Kind::Bool,
    Kind::String,
    Kind::Group,
    Kind::Message,
    Kind::Bytes,
    Kind::UInt32,
    Kind::Enum,
    Kind::SFixed32,
    Kind::SFixed64,
    Kind::SInt32,
    Kind::SInt64,
];

/// The form in which a value is encoded, with the number that tags use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WireType {
    Varint = 0,
    Fixed64 = 1,
    Delimited = 2,
    StartGroup = 3,
    EndGroup = 4,
    Fixed32 = 5,
}

impl Kind {
    /// Returns the name of the type in `.proto` files.
    pub(super) fn name(self) -> &'static str {
        match self {
            Kind::Double => "double",
            Kind::Float => "float",
            Kind::Int64 => "int64",
            Kind::UInt64 => "uint64",
            Kind::Int32 => "int32",
            Kind::Fixed64 => "fixed64",
            Kind::Fixed32 => "fixed32",
            Kind::Bool => "bool",
            Kind::String => "string",
            Kind::Group => "group",
            Kind::Message => "message",
            Kind::Bytes => "bytes",
            Kind::UInt32 => "uint32",
            Kind::Enum => "enum",
            Kind::SFixed32 => "sfixed32",
            Kind::SFixed64 => "sfixed64",
            Kind::SInt32 => "sint32",
            Kind::SInt64 => "sint64",
        }
    }

    pub(super) fn wire_type(self) -> WireType {
        match self {
            Kind::Double | Kind::Fixed64 | Kind::SFixed64 => WireType::Fixed64,
            Kind::Float | Kind::Fixed32 | Kind::SFixed32 => WireType::Fixed32,
            Kind::String | Kind::Message | Kind::Bytes => WireType::Delimited,
            Kind::Group => WireType::StartGroup,
            _ => WireType::Varint,
        }
    }

    /// Returns whether values are numbers, which repeated fields may pack.
    pub(super) fn is_number(self) -> bool {
        !matches!(self, Kind::String | Kind::Message | Kind::Group | Kind::Bytes)
    }
}

/// A field of a message, or an extension.
#[derive(Debug)]
pub(super) struct Field {
    /// The name in the message; for an extension the full name.
    pub(super) name: String,
    pub(super) number: u32,
    pub(super) kind: Kind,
    pub(super) is_repeated: bool,
    pub(super) is_required: bool,
    pub(super) is_packed: bool,
    pub(super) is_extension: bool,
    /// True if a value of zero differs from an absent value.
    pub(super) has_presence: bool,
    /// True if strings must be UTF-8.
    pub(super) must_be_utf8: bool,
    /// The number of the oneof that the field belongs to.
    pub(super) oneof: Option<u64>,
    /// The index of the message or enum type.
    pub(super) of: usize,
    default: Option<Bytes>,
    type_name: String,
    /// The full name of the message around the field, or the package. All fields of a message share it.
    scope: Arc<str>,
}

/// A message type.
#[derive(Debug, Default)]
pub(super) struct MessageType {
    pub(super) full_name: String,
    pub(super) name: String,
    /// The fields and extensions in ascending order of their numbers.
    pub(super) fields: Vec<Field>,
    /// True for entries of maps, whose key and value are always written.
    pub(super) is_map_entry: bool,
    /// The numbers of the required fields that are no extensions.
    pub(super) required: Vec<u32>,
    /// The indices in `fields` by name.
    by_name: BTreeMap<String, usize>,
    /// The indices in `fields` of groups by the names of their message types.
    groups: BTreeMap<String, usize>,
}

impl MessageType {
    pub(super) fn field(&self, number: u32) -> Option<&Field> {
        self.fields.binary_search_by_key(&number, |field| field.number).ok().map(|i| &self.fields[i])
    }

    /// Returns a field by its name, or an extension by its full name.
    pub(super) fn field_named(&self, name: &str) -> Option<&Field> {
        self.by_name.get(name).map(|i| &self.fields[*i])
    }

    /// Returns a group by the name of its message type, which the text form uses.
    pub(super) fn group_named(&self, name: &str) -> Option<&Field> {
        self.groups.get(name).map(|i| &self.fields[*i])
    }
}

/// An enum type.
#[derive(Debug, Default)]
pub(super) struct EnumType {
    full_name: String,
    /// The value of fields without a value; `None` if the enum is empty.
    first: Option<i32>,
    numbers: BTreeSet<i32>,
    by_name: BTreeMap<String, i32>,
    /// True if other numbers count as unknown fields.
    pub(super) is_closed: bool,
}

impl EnumType {
    /// Returns the number of a value by its name.
    pub(super) fn number(&self, name: &str) -> Option<i32> {
        self.by_name.get(name).copied()
    }

    /// Returns whether a number, extended to 64 bits with its sign, is one of the values.
    pub(super) fn has_number(&self, bits: u64) -> bool {
        i32::try_from(bits as i64).is_ok_and(|number| self.numbers.contains(&number))
    }
}

/// The types of a set of files.
#[derive(Debug, Default)]
pub(super) struct Pool {
    pub(super) messages: Vec<MessageType>,
    pub(super) enums: Vec<EnumType>,
    by_name: FxHashMap<String, TypeId>,
}

#[derive(Clone, Copy, Debug)]
enum TypeId {
    Message(usize),
    Enum(usize),
}

/// Properties that files, messages and fields hand down.
#[derive(Clone, Copy)]
struct Features {
    has_presence: bool,
    is_required: bool,
    is_closed: bool,
    is_packed: bool,
    must_be_utf8: bool,
    is_group: bool,
}

const PROTO2: Features = Features {
    has_presence: true,
    is_required: false,
    is_closed: true,
    is_packed: false,
    must_be_utf8: false,
    is_group: false,
};
const PROTO3: Features =
    Features { has_presence: false, is_closed: false, is_packed: true, must_be_utf8: true, ..PROTO2 };
const EDITION: Features = Features { has_presence: true, ..PROTO3 };

impl Features {
    /// Returns the features with the changes of an options message, which holds a `FeatureSet` in field `at`.
    fn with(mut self, options: Option<&[u8]>, at: u32) -> Result<Features, Malformed> {
        for field in Fields::of(options.unwrap_or_default()) {
            let (number, set) = field?;
            if number != at {
                continue;
            }
            for feature in set.fields()? {
                match feature? {
                    (1, WireField::Varint(value)) => {
                        (self.has_presence, self.is_required) = (value != 2, value == 3);
                    }
                    (2, WireField::Varint(value)) => self.is_closed = value == 2,
                    (3, WireField::Varint(value)) => self.is_packed = value == 1,
                    (4, WireField::Varint(value)) => self.must_be_utf8 = value == 2,
                    (5, WireField::Varint(value)) => self.is_group = value == 2,
                    _ => {}
                }
            }
        }
        Ok(self)
    }
}

fn text(field: WireField<'_>) -> Result<String, Malformed> {
    String::from_utf8(field.bytes()?.to_vec()).map_err(|_| Malformed)
}

fn joined(scope: &str, name: &str) -> String {
    if scope.is_empty() { name.to_owned() } else { format!("{scope}.{name}") }
}

impl Pool {
    /// Reads a serialized `FileDescriptorSet`.
    ///
    /// # Errors
    /// `None` if the bytes are not such a message, define a type twice, or nest types too deeply; `InvalidArgument` for a
    /// type that is missing or invalid; `ResourceExhausted` if the full names of the types exceed the memory limit.
    pub(super) fn read(set: &[u8]) -> Option<Result<Pool>> {
        Pool::read_within(set, &Budget::new(memory_limit(), &Cancellation::new()))
    }

    /// Reads a serialized `FileDescriptorSet` within a budget; the errors are those of [`Pool::read`].
    fn read_within(set: &[u8], budget: &Budget<'_>) -> Option<Result<Pool>> {
        let (mut pool, mut extensions) = (Pool::default(), Vec::new());
        for field in Fields::of(set) {
            let (number, file) = field.ok()?;
            if number == 1 {
                match file
                    .bytes()
                    .map_err(Failure::from)
                    .and_then(|file| pool.read_file(file, &mut extensions, budget))
                {
                    Ok(()) => {}
                    Err(Failure::Malformed) => return None,
                    Err(Failure::Stopped(error)) => return Some(Err(error)),
                }
            }
        }
        Some(pool.link(extensions, budget))
    }

    fn read_file(
        &mut self,
        file: &[u8],
        extensions: &mut Vec<(String, Field)>,
        budget: &Budget<'_>,
    ) -> Result<(), Failure> {
        let (mut package, mut features, mut options) = (String::new(), PROTO2, None);
        for field in Fields::of(file) {
            match field? {
                (2, value) => package = text(value)?,
                (8, value) => options = Some(value.bytes()?),
                (12, value) if value.bytes()? == b"proto3" => features = PROTO3,
                (14, _) => features = EDITION,
                _ => {}
            }
        }
        let features = features.with(options, 50)?;
        let package = Arc::<str>::from(package);
        let depth = if package.is_empty() { 0 } else { package.split('.').count() };
        for field in Fields::of(file) {
            match field? {
                (4, value) => {
                    self.read_message(value.bytes()?, &package, features, extensions, depth, budget)?;
                }
                (5, value) => self.read_enum(value.bytes()?, &package, features, budget)?,
                (7, value) => extensions.push(read_field(value.bytes()?, &package, features)?),
                _ => {}
            }
        }
        Ok(())
    }

    /// Reads a `DescriptorProto` with the types inside. `depth` is the number of packages and messages around it.
    fn read_message(
        &mut self,
        message: &[u8],
        scope: &str,
        features: Features,
        extensions: &mut Vec<(String, Field)>,
        depth: usize,
        budget: &Budget<'_>,
    ) -> Result<(), Failure> {
        if depth > MAX_DEPTH {
            return Err(Failure::Malformed);
        }
        let (mut of, mut options) = (MessageType::default(), None);
        for field in Fields::of(message) {
            match field? {
                (1, value) => of.name = text(value)?,
                (7, value) => options = Some(value.bytes()?),
                _ => {}
            }
        }
        if of.name.contains('.') {
            return Err(Failure::Malformed);
        }
        // The name is kept in the type, in the index of types, and in the fields of the type.
        budget.take(3 * (scope.len() + of.name.len()))?;
        of.full_name = joined(scope, &of.name);
        for option in Fields::of(options.unwrap_or_default()) {
            if let (7, WireField::Varint(value)) = option? {
                of.is_map_entry = value != 0;
            }
        }
        let (scope, features) = (Arc::<str>::from(&of.full_name[..]), features.with(options, 12)?);
        for field in Fields::of(message) {
            match field? {
                (2, value) => of.fields.push(read_field(value.bytes()?, &scope, features)?.1),
                (3, value) => {
                    self.read_message(value.bytes()?, &scope, features, extensions, depth + 1, budget)?;
                }
                (4, value) => self.read_enum(value.bytes()?, &scope, features, budget)?,
                (6, value) => extensions.push(read_field(value.bytes()?, &scope, features)?),
                _ => {}
            }
        }
        let name = of.full_name.clone();
        let is_known = self.by_name.insert(name, TypeId::Message(self.messages.len())).is_some();
        self.messages.push(of);
        if is_known { Err(Failure::Malformed) } else { Ok(()) }
    }

    fn read_enum(
        &mut self,
        bytes: &[u8],
        scope: &str,
        features: Features,
        budget: &Budget<'_>,
    ) -> Result<(), Failure> {
        let (mut of, mut options) = (EnumType::default(), None);
        for field in Fields::of(bytes) {
            match field? {
                (1, value) => {
                    let name = text(value)?;
                    budget.take(2 * (scope.len() + name.len()))?;
                    of.full_name = joined(scope, &name);
                }
                (2, value) => {
                    let mut entry = (String::new(), 0);
                    for part in value.fields()? {
                        match part? {
                            (1, value) => entry.0 = text(value)?,
                            (2, WireField::Varint(number)) => entry.1 = number as i32,
                            _ => {}
                        }
                    }
                    of.first.get_or_insert(entry.1);
                    of.numbers.insert(entry.1);
                    of.by_name.entry(entry.0).or_insert(entry.1);
                }
                (3, value) => options = Some(value.bytes()?),
                _ => {}
            }
        }
        of.is_closed = features.with(options, 7)?.is_closed;
        let is_known = self.by_name.insert(of.full_name.clone(), TypeId::Enum(self.enums.len())).is_some();
        self.enums.push(of);
        if is_known { Err(Failure::Malformed) } else { Ok(()) }
    }

    /// Finds the types of all fields, and adds extensions to the messages that they extend.
    fn link(mut self, extensions: Vec<(String, Field)>, budget: &Budget<'_>) -> Result<Pool> {
        for (extendee, mut field) in extensions {
            let Some(TypeId::Message(of)) = self.find(&extendee, &field.scope) else {
                return Err(unloadable(&format!("extension {} of {extendee}", field.name)));
            };
            // The name is kept in the field and in the index of the message's fields.
            budget.take(2 * (field.scope.len() + field.name.len()))?;
            field.name = joined(&field.scope, &field.name);
            field.is_extension = true;
            self.messages[of].fields.push(field);
        }
        let mut messages = std::mem::take(&mut self.messages);
        for message in &mut messages {
            for field in &mut message.fields {
                if field.kind.is_number() && field.kind != Kind::Enum && field.type_name.is_empty() {
                    continue;
                }
                match (field.kind, self.find(&field.type_name, &field.scope)) {
                    (Kind::String | Kind::Bytes, None) if field.type_name.is_empty() => {}
                    (Kind::Message | Kind::Group, Some(TypeId::Message(of))) => field.of = of,
                    (Kind::Enum | Kind::Message, Some(TypeId::Enum(of))) => {
                        (field.kind, field.of) = (Kind::Enum, of);
                        if self.enums[of].first.is_none() {
                            return Err(unloadable(&format!("enum {}", self.enums[of].full_name)));
                        }
                    }
                    _ => return Err(unloadable(&format!("{}.{}", message.full_name, field.name))),
                }
                field.is_packed &= field.kind.is_number();
            }
            message.fields.sort_by_key(|field| field.number);
            if message.fields.windows(2).any(|pair| pair[0].number == pair[1].number) {
                return Err(unloadable(&message.full_name));
            }
        }
        let groups =
            messages.iter().map(|of| groups_of(of, &messages, budget)).collect::<Result<Vec<_>>>()?;
        for (message, groups) in messages.iter_mut().zip(groups) {
            message.groups = groups;
            for (i, field) in message.fields.iter().enumerate() {
                message.by_name.entry(field.name.clone()).or_insert(i);
            }
            let required = message.fields.iter().filter(|field| field.is_required && !field.is_extension);
            message.required = required.map(|field| field.number).collect();
        }
        self.messages = messages;
        Ok(self)
    }

    /// Finds a type by a full name that begins with a dot, or by a name relative to a scope.
    fn find(&self, name: &str, scope: &str) -> Option<TypeId> {
        if let Some(full) = name.strip_prefix('.') {
            return self.by_name.get(full).copied();
        }
        let mut scope = scope;
        loop {
            if let Some(found) = self.by_name.get(&joined(scope, name)) {
                return Some(*found);
            }
            if scope.is_empty() {
                return None;
            }
            scope = scope.rsplit_once('.').map_or("", |(outer, _)| outer);
        }
    }

    /// Returns a message type by its full name.
    pub(super) fn message(&self, full_name: &str) -> Option<&MessageType> {
        match self.by_name.get(full_name) {
            Some(TypeId::Message(of)) => self.messages.get(*of),
            _ => None,
        }
    }

    /// Returns the default value of a field of numbers or strings.
    ///
    /// # Errors
    /// `InvalidArgument` for a default that does not fit the field's type.
    pub(super) fn default_of(&self, field: &Field) -> Result<DefaultValue> {
        let wrong = || unloadable(&format!("{} with its default value", field.name));
        let Some(given) = &field.default else {
            return Ok(match field.kind {
                Kind::Enum => {
                    let first = self.enums[field.of].first.ok_or_else(wrong)?;
                    DefaultValue::Number(i64::from(first) as u64)
                }
                kind if kind.is_number() => DefaultValue::Number(0),
                _ => DefaultValue::Bytes(Bytes::new()),
            });
        };
        let text = std::str::from_utf8(given).map_err(|_| wrong());
        let number = match field.kind {
            Kind::String => return Ok(DefaultValue::Bytes(given.clone())),
            Kind::Bytes => return Ok(DefaultValue::Bytes(unescaped(given).ok_or_else(wrong)?.into())),
            Kind::Message | Kind::Group => return Ok(DefaultValue::Bytes(Bytes::new())),
            Kind::Double => text?.parse::<f64>().map_err(|_| wrong())?.to_bits(),
            Kind::Float => text?.parse::<f32>().map_err(|_| wrong())?.to_bits().into(),
            Kind::Bool => u64::from(text? == "true"),
            Kind::Enum => {
                let found = self.enums[field.of].number(text?);
                i64::from(found.ok_or_else(wrong)?) as u64
            }
            Kind::UInt64 | Kind::Fixed64 | Kind::UInt32 | Kind::Fixed32 => {
                text?.parse::<u64>().map_err(|_| wrong())?
            }
            _ => text?.parse::<i64>().map_err(|_| wrong())? as u64,
        };
        Ok(DefaultValue::Number(number))
    }
}

/// The default value of a field: the bits of a number, or bytes.
#[derive(Clone, Debug)]
pub(super) enum DefaultValue {
    Number(u64),
    Bytes(Bytes),
}

/// The deepest nesting of types and of messages.
pub(super) const MAX_DEPTH: usize = 100;

/// Returns the indices of a message's groups by the names of their types.
fn groups_of(
    of: &MessageType,
    messages: &[MessageType],
    budget: &Budget<'_>,
) -> Result<BTreeMap<String, usize>> {
    let mut groups = BTreeMap::new();
    for (i, field) in of.fields.iter().enumerate().filter(|(_, field)| field.kind == Kind::Group) {
        let name = &messages[field.of].name;
        budget.take(name.len())?;
        groups.entry(name.clone()).or_insert(i);
    }
    Ok(groups)
}

fn unloadable(what: &str) -> Error {
    Error::invalid(format!(
        "Failed to load FileDescriptorProto: {what} is invalid, or refers to a missing type"
    ))
}

/// Reads a `FieldDescriptorProto`; returns the name of the extended message, and the field.
fn read_field(bytes: &[u8], scope: &Arc<str>, features: Features) -> Result<(String, Field), Malformed> {
    let mut extendee = String::new();
    let (mut name, mut type_name) = (String::new(), String::new());
    let (mut number, mut label, mut kind, mut oneof) = (0, 1, None, None);
    let (mut default, mut options, mut is_optional) = (None, None, false);
    for field in Fields::of(bytes) {
        match field? {
            (1, value) => name = text(value)?,
            (2, value) => extendee = text(value)?,
            (3, WireField::Varint(value)) => number = u32::try_from(value).map_err(|_| Malformed)?,
            (4, WireField::Varint(value)) => label = value,
            (5, WireField::Varint(value)) => {
                let at =
                    usize::try_from(value).ok().and_then(|value| value.checked_sub(1)).ok_or(Malformed)?;
                kind = Some(*KINDS.get(at).ok_or(Malformed)?);
            }
            (6, value) => type_name = text(value)?,
            (7, value) => default = Some(Bytes::copy_from_slice(value.bytes()?)),
            (8, value) => options = Some(value.bytes()?),
            (9, WireField::Varint(value)) => oneof = Some(value),
            (17, WireField::Varint(value)) => is_optional = value != 0,
            _ => {}
        }
    }
    let features = features.with(options, 21)?;
    let mut is_packed = features.is_packed;
    for option in Fields::of(options.unwrap_or_default()) {
        if let (2, WireField::Varint(value)) = option? {
            is_packed = value != 0;
        }
    }
    let is_repeated = label == 3;
    let mut kind = kind.unwrap_or(Kind::Message);
    if kind == Kind::Message && features.is_group {
        kind = Kind::Group;
    }
    let is_message = matches!(kind, Kind::Message | Kind::Group);
    let has_presence =
        features.has_presence || is_optional || oneof.is_some() || is_message || !extendee.is_empty();
    let field = Field {
        name,
        number,
        kind,
        is_repeated,
        is_required: label == 2 || features.is_required,
        is_packed: is_packed && is_repeated,
        is_extension: false,
        has_presence,
        must_be_utf8: features.must_be_utf8,
        oneof: oneof.filter(|_| !is_optional),
        of: 0,
        default,
        type_name,
        scope: scope.clone(),
    };
    Ok((extendee, field))
}

#[cfg(test)]
mod tests {
    use super::super::wire::{put_bytes, put_tag};
    use super::*;
    use graph::Code;

    /// Returns a message with fields of bytes.
    fn message<'a>(fields: impl IntoIterator<Item = (u32, &'a [u8])>) -> Vec<u8> {
        let mut out = Vec::new();
        for (number, value) in fields {
            put_tag(&mut out, number, WireType::Delimited);
            put_bytes(&mut out, value);
        }
        out
    }

    /// Returns a set of one file with one message type.
    fn set_of(of: &[u8]) -> Vec<u8> {
        message([(1, &message([(4, of)])[..])])
    }

    #[test]
    fn types_that_are_nested_too_deeply_are_malformed() {
        let mut of = Vec::new();
        for _ in 0..10_000 {
            of = message([(3, &of[..])]);
        }
        assert!(Pool::read(&set_of(&of)).is_none());
        let mut of = message([(1, &b"M"[..])]);
        for _ in 0..MAX_DEPTH {
            of = message([(1, &b"M"[..]), (3, &of[..])]);
        }
        assert_eq!(
            Pool::read(&set_of(&of)).expect("a set of files").expect("types within the limit").messages.len(),
            MAX_DEPTH + 1
        );
        of = message([(1, &b"M"[..]), (3, &of[..])]);
        assert!(Pool::read(&set_of(&of)).is_none());
    }

    #[test]
    fn the_fields_of_a_message_share_their_scope() {
        // The label is 1 for optional, and the type 9 for strings.
        let field = |name: &[u8], number: u8| {
            [message([(1, name)]), vec![3 << 3, number, 4 << 3, 1, 5 << 3, 9]].concat()
        };
        let (a, b) = (field(b"a", 1), field(b"b", 2));
        let of = message([(1, &b"M"[..]), (2, &a[..]), (2, &b[..])]);
        let pool = Pool::read(&set_of(&of)).expect("a set of files").expect("types within the limit");
        let of = pool.message("M").expect("a message type");
        assert!(Arc::ptr_eq(&of.fields[0].scope, &of.fields[1].scope));
        assert_eq!(of.field_named("b").expect("a field").number, 2);
        assert!(of.field_named("c").is_none());
    }

    #[test]
    fn the_full_names_of_types_are_bounded_by_the_memory_limit() {
        let name = vec![b'M'; 10_000];
        let inner: Vec<Vec<u8>> = (0..100).map(|i| message([(1, format!("N{i}").as_bytes())])).collect();
        let types = inner.iter().map(|of| (3, &of[..]));
        let set = set_of(&message([(1, &name[..])].into_iter().chain(types)));
        let cancellation = Cancellation::new();
        let read = Pool::read_within(&set, &Budget::new(5_000_000, &cancellation));
        assert_eq!(read.expect("a set of files").expect("types within the limit").messages.len(), 101);
        let read = Pool::read_within(&set, &Budget::new(500_000, &cancellation));
        assert_eq!(
            read.expect("a set of files").expect_err("the limit is reached").code(),
            Code::ResourceExhausted
        );
    }

    #[test]
    fn an_enum_knows_its_names_and_numbers() {
        let value = |name: &[u8], number: u8| [message([(1, name)]), vec![2 << 3, number]].concat();
        let (a, b) = (value(b"A", 5), value(b"B", 3));
        let of = message([(1, &b"E"[..]), (2, &a[..]), (2, &b[..])]);
        let pool = Pool::read(&message([(1, &message([(5, &of[..])])[..])]))
            .expect("a set of files")
            .expect("types within the limit");
        let of = &pool.enums[0];
        assert!(of.is_closed);
        assert_eq!((of.first, of.number("B"), of.number("C")), (Some(5), Some(3), None));
        assert_eq!([5, 3, 4, 1 << 32 | 5].map(|bits| of.has_number(bits)), [true, true, false, false]);
    }
}
