//! Synthetic clicks: examples of a user who is shown an item at some place and hour, and clicks on it or not.
//!
//! Each user and each item is of one of three kinds, and a kind of user likes certain kinds of items. Each place has
//! random good hours. A click is likely if the user likes the item's kind and the hour is good for the place, and more
//! likely with higher values of two numeric columns. No model can predict more than 95 % of the clicks, because the
//! outcome is drawn at random.

use crate::command::demo::problem::Examples;
use crate::command::demo::random::Sequence;
use graph::{Result, Shape, Tensor};

/// A categorical column, whose values are ids.
#[derive(Clone, Copy, Debug)]
pub(super) struct Column {
    pub(super) name: &'static str,
    /// Number of different ids.
    pub(super) ids: usize,
}

pub(super) const USER: usize = 0;
pub(super) const ITEM: usize = 1;
pub(super) const PLACE: usize = 2;
pub(super) const HOUR: usize = 3;

pub(super) const COLUMNS: [Column; 4] = [
    Column { name: "user", ids: 60 },
    Column { name: "item", ids: 60 },
    Column { name: "place", ids: 24 },
    Column { name: "hour", ids: 12 },
];

/// Number of columns with numeric values.
pub(super) const NUMBERS: usize = 2;

/// The table of likes: true if a kind of user (row) likes a kind of item (column).
const LIKES: [[bool; 3]; 3] = [[true, false, false], [true, true, false], [false, true, true]];

/// The hidden parameters that determine clicks.
#[derive(Debug)]
struct ClickParameters {
    kinds_of_users: Vec<usize>,
    kinds_of_items: Vec<usize>,
    /// True if an hour is good for a place; indexed by place, then by hour.
    is_good_hour: Vec<bool>,
}

impl ClickParameters {
    fn new(random: &mut Sequence) -> ClickParameters {
        let kinds = LIKES.len();
        ClickParameters {
            kinds_of_users: (0..COLUMNS[USER].ids).map(|_| random.below(kinds)).collect(),
            kinds_of_items: (0..COLUMNS[ITEM].ids).map(|_| random.below(kinds)).collect(),
            is_good_hour: (0..COLUMNS[PLACE].ids * COLUMNS[HOUR].ids).map(|_| random.below(2) == 1).collect(),
        }
    }

    /// Returns the log odds of a click.
    fn odds(&self, ids: [usize; 4], numbers: [f32; NUMBERS]) -> f32 {
        let sign = |yes: bool| if yes { 1.0 } else { -1.0 };
        let likes = LIKES[self.kinds_of_users[ids[USER]]][self.kinds_of_items[ids[ITEM]]];
        let is_good_hour = self.is_good_hour[ids[PLACE] * COLUMNS[HOUR].ids + ids[HOUR]];
        8.0 * sign(likes) + 8.0 * sign(is_good_hour) + 6.0 * numbers.iter().sum::<f32>()
    }

    /// Returns `count` random examples: ids `[n, 4]`, numeric values `[n, 2]`, and labels `[n]`, 1 for a click.
    fn examples(&self, count: usize, random: &mut Sequence) -> Result<Examples> {
        let (mut all_ids, mut all_numbers, mut clicked) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..count {
            let ids = COLUMNS.map(|column| random.below(column.ids));
            let numbers: [f32; NUMBERS] = std::array::from_fn(|_| 2.0 * random.unit() - 1.0);
            let likelihood = 1.0 / (1.0 + (-self.odds(ids, numbers)).exp());
            clicked.push(i32::from(random.unit() < likelihood));
            all_ids.extend(ids.map(|id| id as i32));
            all_numbers.extend(numbers);
        }
        let features = vec![
            Tensor::from_slice(&all_ids, Shape::new(&[count, COLUMNS.len()])?)?,
            Tensor::from_slice(&all_numbers, Shape::new(&[count, NUMBERS])?)?,
        ];
        Ok(Examples { features, labels: Tensor::vector(&clicked)? })
    }
}

/// Returns training and held-out examples, which are the same in every run.
pub(super) fn clicks(training: usize, held_out: usize) -> Result<(Examples, Examples)> {
    let mut random = Sequence(2016);
    let parameters = ClickParameters::new(&mut random);
    Ok((parameters.examples(training, &mut random)?, parameters.examples(held_out, &mut random)?))
}
