//! What chat templates take for granted because transformers runs them in Python.

use std::time::{SystemTime, UNIX_EPOCH};

use minijinja::value::{Kwargs, Value as Jinja};
use minijinja::{Error, ErrorKind};
use serde_json::Value;

/// Deepest nesting written as JSON. The parser of requests allows 128.
const DEPTH_MAX: usize = 192;

/// `tojson` as transformers defines it: `json.dumps(value, ensure_ascii=False)` with Python's
/// separators, and not escaped for HTML.
pub(super) fn to_json(value: &Jinja, options: &Kwargs) -> Result<String, Error> {
    let indent = match options.get::<Option<Jinja>>("indent")? {
        None => None,
        Some(value) if value.is_none() => None,
        Some(value) => Some(usize::try_from(value).map_or(0, |width| width.min(16))),
    };
    let sort_keys = options.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    let ascii = options.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false);
    let separators = options.get::<Option<Vec<String>>>("separators")?;
    options.assert_all_used()?;
    let (item, key) = match separators.as_deref() {
        Some([item, key]) => (item.clone(), key.clone()),
        Some(_) => {
            let message = "tojson: `separators` must be a pair of strings";
            return Err(Error::new(ErrorKind::InvalidOperation, message));
        }
        None if indent.is_some() => (",".to_owned(), ": ".to_owned()),
        None => (", ".to_owned(), ": ".to_owned()),
    };
    let value = serde_json::to_value(value)
        .map_err(|error| Error::new(ErrorKind::BadSerialization, error.to_string()))?;
    let mut writer = JsonWriter { out: String::new(), item, key, indent, sort_keys, ascii };
    writer.write(&value, 0)?;
    Ok(writer.out)
}

struct JsonWriter {
    out: String,
    item: String,
    key: String,
    indent: Option<usize>,
    sort_keys: bool,
    ascii: bool,
}

impl JsonWriter {
    fn write(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > DEPTH_MAX {
            let message = "tojson: the value is nested too deeply";
            return Err(Error::new(ErrorKind::BadSerialization, message));
        }
        match value {
            Value::Null | Value::Bool(_) | Value::Number(_) => self.out += &value.to_string(),
            Value::String(text) => self.string(text),
            Value::Array(values) if values.is_empty() => self.out += "[]",
            Value::Array(values) => {
                self.out.push('[');
                for (index, value) in values.iter().enumerate() {
                    self.gap(index, depth + 1);
                    self.write(value, depth + 1)?;
                }
                self.line(depth);
                self.out.push(']');
            }
            Value::Object(fields) if fields.is_empty() => self.out += "{}",
            Value::Object(fields) => {
                let mut fields: Vec<_> = fields.iter().collect();
                if self.sort_keys {
                    fields.sort_by_key(|&(key, _)| key);
                }
                self.out.push('{');
                for (index, (key, value)) in fields.into_iter().enumerate() {
                    self.gap(index, depth + 1);
                    self.string(key);
                    self.out += &self.key;
                    self.write(value, depth + 1)?;
                }
                self.line(depth);
                self.out.push('}');
            }
        }
        Ok(())
    }

    fn gap(&mut self, index: usize, depth: usize) {
        if index > 0 {
            self.out += &self.item;
        }
        self.line(depth);
    }

    fn line(&mut self, depth: usize) {
        if let Some(width) = self.indent {
            self.out.push('\n');
            self.out.extend(std::iter::repeat_n(' ', width * depth));
        }
    }

    fn string(&mut self, text: &str) {
        let written = Value::from(text).to_string();
        if !self.ascii {
            self.out += &written;
            return;
        }
        for letter in written.chars() {
            if letter.is_ascii() {
                self.out.push(letter);
            } else {
                for unit in letter.encode_utf16(&mut [0; 2]) {
                    self.out += &format!("\\u{unit:04x}");
                }
            }
        }
    }
}

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
/// From the weekday of 1 January 1970 on.
const WEEKDAYS: [&str; 7] =
    ["Thursday", "Friday", "Saturday", "Sunday", "Monday", "Tuesday", "Wednesday"];

/// The time now (UTC) as `strftime` writes it.
pub(super) fn strftime_now(format: &str) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    strftime(format, now)
}

fn strftime(format: &str, unix_s: u64) -> String {
    let (days, second) = (unix_s / 86_400, unix_s % 86_400);
    let (year, month, day) = civil(days);
    let (hour, minute) = (second / 3600, second / 60 % 60);
    let name = |names: &[&'static str], index: u64| names[usize::try_from(index).unwrap_or(0)];
    let weekday = name(&WEEKDAYS, days % 7);
    let month_name = name(&MONTHS, month - 1);
    let mut out = String::new();
    let mut letters = format.chars();
    while let Some(letter) = letters.next() {
        if letter != '%' {
            out.push(letter);
            continue;
        }
        match letters.next() {
            Some('Y') => out += &format!("{year:04}"),
            Some('y') => out += &format!("{:02}", year % 100),
            Some('m') => out += &format!("{month:02}"),
            Some('d') => out += &format!("{day:02}"),
            Some('e') => out += &format!("{day:2}"),
            Some('B') => out += month_name,
            Some('b' | 'h') => out += &month_name[..3],
            Some('A') => out += weekday,
            Some('a') => out += &weekday[..3],
            Some('H') => out += &format!("{hour:02}"),
            Some('I') => out += &format!("{:02}", (hour + 11) % 12 + 1),
            Some('M') => out += &format!("{minute:02}"),
            Some('S') => out += &format!("{:02}", second % 60),
            Some('p') => out += if hour < 12 { "AM" } else { "PM" },
            Some('F') => out += &format!("{year:04}-{month:02}-{day:02}"),
            Some('T') => out += &format!("{hour:02}:{minute:02}:{:02}", second % 60),
            Some('Z') => out += "UTC",
            Some('z') => out += "+0000",
            Some('-') => match letters.next() {
                Some('d') => out += &day.to_string(),
                Some('m') => out += &month.to_string(),
                Some('H') => out += &hour.to_string(),
                Some('I') => out += &((hour + 11) % 12 + 1).to_string(),
                Some('M') => out += &minute.to_string(),
                Some(other) => out.extend(['%', '-', other]),
                None => out += "%-",
            },
            Some('%') | None => out.push('%'),
            Some(other) => out.extend(['%', other]),
        }
    }
    out
}

/// Year, month and day of a day counted from 1 January 1970.
///
/// Source: Howard Hinnant, "chrono-compatible low-level date algorithms", `civil_from_days`.
fn civil(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    (year, month, day)
}

#[cfg(test)]
mod tests {
    use super::strftime;

    #[test]
    fn times_are_written_as_strftime_does() {
        // 29 February 2024, 13:05:09 UTC.
        let now = 1_709_211_909;
        assert_eq!(strftime("%d %b %Y", now), "29 Feb 2024");
        assert_eq!(
            strftime("%A, %B %-d, %y %I:%M:%S %p %%", now),
            "Thursday, February 29, 24 01:05:09 PM %"
        );
        assert_eq!(strftime("%F %T %j%", now), "2024-02-29 13:05:09 %j%");
        assert_eq!(strftime("%Y-%m-%d %a", 0), "1970-01-01 Thu");
        assert_eq!(strftime("%Y-%m-%d", 951_782_399), "2000-02-28");
        assert_eq!(strftime("%Y-%m-%d", 4_102_444_800), "2100-01-01");
    }
}
