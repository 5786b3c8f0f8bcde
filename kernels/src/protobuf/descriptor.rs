//! Message types at run time: descriptors of messages, fields and enums, read from a `FileDescriptorSet`.

use super::escape::unescaped;
use bytes::Bytes;
use checkpoint::proto::{Field as WireField, Fields, Malformed};
use device::{Error, Result};
use rustc_hash::FxHashMap;

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
    scope: String,
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
}

impl MessageType {
    pub(super) fn field(&self, number: u32) -> Option<&Field> {
        self.fields.binary_search_by_key(&number, |field| field.number).ok().map(|i| &self.fields[i])
    }

    /// Returns a field by its name, or an extension by its full name.
    pub(super) fn field_named(&self, name: &str) -> Option<&Field> {
        self.fields.iter().find(|field| field.name == name)
    }
}

/// An enum type.
#[derive(Debug, Default)]
pub(super) struct EnumType {
    full_name: String,
    pub(super) values: Vec<(String, i32)>,
    /// True if other numbers count as unknown fields.
    pub(super) is_closed: bool,
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
    /// `None` if the bytes are not such a message or define a type twice; `InvalidArgument` for a type that is missing or
    /// invalid.
    pub(super) fn read(set: &[u8]) -> Option<Result<Pool>> {
        let (mut pool, mut extensions) = (Pool::default(), Vec::new());
        for field in Fields::of(set) {
            let (number, file) = field.ok()?;
            if number == 1 {
                pool.read_file(file.bytes().ok()?, &mut extensions).ok()?;
            }
        }
        Some(pool.link(extensions))
    }

    fn read_file(&mut self, file: &[u8], extensions: &mut Vec<(String, Field)>) -> Result<(), Malformed> {
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
        for field in Fields::of(file) {
            match field? {
                (4, value) => self.read_message(value.bytes()?, &package, features, extensions)?,
                (5, value) => self.read_enum(value.bytes()?, &package, features)?,
                (7, value) => extensions.push(read_field(value.bytes()?, &package, features)?),
                _ => {}
            }
        }
        Ok(())
    }

    fn read_message(
        &mut self,
        message: &[u8],
        scope: &str,
        features: Features,
        extensions: &mut Vec<(String, Field)>,
    ) -> Result<(), Malformed> {
        let (mut of, mut options) = (MessageType::default(), None);
        for field in Fields::of(message) {
            match field? {
                (1, value) => of.name = text(value)?,
                (7, value) => options = Some(value.bytes()?),
                _ => {}
            }
        }
        of.full_name = joined(scope, &of.name);
        for option in Fields::of(options.unwrap_or_default()) {
            if let (7, WireField::Varint(value)) = option? {
                of.is_map_entry = value != 0;
            }
        }
        let (scope, features) = (of.full_name.clone(), features.with(options, 12)?);
        // The depth of nested types is bounded by the reader of nested fields, which takes each level's bytes.
        if scope.bytes().filter(|byte| *byte == b'.').count() > MAX_DEPTH {
            return Err(Malformed);
        }
        for field in Fields::of(message) {
            match field? {
                (2, value) => of.fields.push(read_field(value.bytes()?, &scope, features)?.1),
                (3, value) => self.read_message(value.bytes()?, &scope, features, extensions)?,
                (4, value) => self.read_enum(value.bytes()?, &scope, features)?,
                (6, value) => extensions.push(read_field(value.bytes()?, &scope, features)?),
                _ => {}
            }
        }
        let is_known = self.by_name.insert(scope, TypeId::Message(self.messages.len())).is_some();
        self.messages.push(of);
        if is_known { Err(Malformed) } else { Ok(()) }
    }

    fn read_enum(&mut self, bytes: &[u8], scope: &str, features: Features) -> Result<(), Malformed> {
        let (mut of, mut options) = (EnumType::default(), None);
        for field in Fields::of(bytes) {
            match field? {
                (1, value) => of.full_name = joined(scope, &text(value)?),
                (2, value) => {
                    let mut entry = (String::new(), 0);
                    for part in value.fields()? {
                        match part? {
                            (1, value) => entry.0 = text(value)?,
                            (2, WireField::Varint(number)) => entry.1 = number as i32,
                            _ => {}
                        }
                    }
                    of.values.push(entry);
                }
                (3, value) => options = Some(value.bytes()?),
                _ => {}
            }
        }
        of.is_closed = features.with(options, 7)?.is_closed;
        let is_known = self.by_name.insert(of.full_name.clone(), TypeId::Enum(self.enums.len())).is_some();
        self.enums.push(of);
        if is_known { Err(Malformed) } else { Ok(()) }
    }

    /// Finds the types of all fields, and adds extensions to the messages that they extend.
    fn link(mut self, extensions: Vec<(String, Field)>) -> Result<Pool> {
        for (extendee, mut field) in extensions {
            let Some(TypeId::Message(of)) = self.find(&extendee, &field.scope) else {
                return Err(unloadable(&format!("extension {} of {extendee}", field.name)));
            };
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
                        if self.enums[of].values.is_empty() {
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
                Kind::Enum => DefaultValue::Number(i64::from(self.enums[field.of].values[0].1) as u64),
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
                let text = text?;
                let found = self.enums[field.of].values.iter().find(|(name, _)| name == text);
                i64::from(found.ok_or_else(wrong)?.1) as u64
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

fn unloadable(what: &str) -> Error {
    Error::invalid(format!(
        "Failed to load FileDescriptorProto: {what} is invalid, or refers to a missing type"
    ))
}

/// Reads a `FieldDescriptorProto`; returns the name of the extended message, and the field.
fn read_field(bytes: &[u8], scope: &str, features: Features) -> Result<(String, Field), Malformed> {
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
        scope: scope.to_owned(),
    };
    Ok((extendee, field))
}
