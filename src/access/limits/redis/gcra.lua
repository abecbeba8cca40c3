-- The generic cell rate algorithm on one bucket, in one step. Times are microseconds of this server's own clock, so
-- that replicas whose clocks differ share a bucket all the same.
--
-- KEYS[1]  when the bucket will be full; a key that is absent is a full bucket
-- ARGV[1]  time in which one request is given back
-- ARGV[2]  time in which an empty bucket fills: the former, times the burst
--
-- Answers {1, time until full} to a request that passes, {0, time until one would pass} to one that does not and takes
-- nothing.

local interval, capacity = tonumber(ARGV[1]), tonumber(ARGV[2])
local clock = redis.call('TIME')
local now = tonumber(clock[1]) * 1000000 + tonumber(clock[2])
local full_at = math.max(tonumber(redis.call('GET', KEYS[1]) or 0), now)
-- A clock that was set back, as after a failover, must not shut anybody out for longer than an empty bucket would.
full_at = math.min(full_at, now + capacity) + interval
local until_full = full_at - now
if until_full > capacity then
  return {0, until_full - capacity}
end
-- Whole digits: as a text of Lua's own making the time would lose its last ones.
redis.call('SET', KEYS[1], string.format('%.0f', full_at), 'PX', math.ceil(until_full / 1000))
return {1, until_full}
