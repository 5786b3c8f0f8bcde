//! Variables behind resource handles.
